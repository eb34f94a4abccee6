#!/bin/sh
# A remote shell that runs on this machine what it is to run on a host, except on `nowhere`; and
# which prints something before, as start-up files of a host may.
#
#   remote_shell.sh HOST COMMAND...
if [ "$1" = nowhere ]; then
    echo 'no route to nowhere' >&2
    exit 255
fi
HOST=$1
export HOST
printf 'Welcome to %s' "$HOST"
shift
# With ssh the host's shell reads the words once more, so this has a shell read them, too.
eval "exec $*"
