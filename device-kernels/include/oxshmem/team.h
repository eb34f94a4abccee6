// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Teams: ordered sets of PEs. The host makes and destroys them; device code takes their handles,
// which are the same numbers.
#pragma once

#include "detail/meet.h"

namespace oxshmem {

using team_t = int32_t;

constexpr team_t TEAM_INVALID = abi::kTeamInvalid;
constexpr team_t TEAM_WORLD = abi::kTeamWorld;   // all PEs
constexpr team_t TEAM_SHARED = abi::kTeamShared; // those that reach each other by load and store
constexpr team_t TEAM_NODE = abi::kTeamNode;     // those of the node
// Those with the same number in their nodes' teams.
constexpr team_t TEAM_SAME_NODE_PE = abi::kTeamSameNodePe;

// The caller's number in the team, or -1 if there is no such team.
OXSHMEM_DEVICE int team_my_pe(team_t team) {
    const abi::Team *row = detail::find_team(team);
    return row == nullptr ? -1 : row->my_pe;
}

// How many members the team has, or -1 if there is no such team.
OXSHMEM_DEVICE int team_n_pes(team_t team) {
    const abi::Team *row = detail::find_team(team);
    return row == nullptr ? -1 : row->n_pes;
}

// The number in `destination` of the PE that is number `pe` in `source`; -1 if it is not a member,
// or an argument names nothing.
OXSHMEM_DEVICE int team_translate_pe(team_t source, int pe, team_t destination) {
    const abi::Team *from = detail::find_team(source), *to = detail::find_team(destination);
    if (from == nullptr || to == nullptr || pe < 0 || pe >= from->n_pes) {
        return -1;
    }
    const int world = detail::view_of(*from).pe_of(pe);
    if (to->members == 0) {
        const int distance = world - to->start, number = distance / to->stride;
        return distance >= 0 && distance % to->stride == 0 && number < to->n_pes ? number : -1;
    }
    const int32_t *members = detail::as<int32_t>(to->members);
    for (int number = 0; number < to->n_pes; ++number) {
        if (port::read(members + number) == world) {
            return number;
        }
    }
    return -1;
}

} // namespace oxshmem
