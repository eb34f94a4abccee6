#include "conformance.h"
