// Package crash lets tests end a coordinator the way kill -9 would: without a clean stop.
package crash

import "errors"

// Killed, as the cause with which the context of Run is cancelled, makes Run return at once:
// nothing is resigned, drained or deregistered.
var Killed = errors.New("killed by a test")
