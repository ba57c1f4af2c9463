// Package crash lets tests end a coordinator the way kill -9 would: without a clean stop.
package crash

import "errors"

// ErrKilled is the cause of a cancelled context that makes Run return at once: nothing is resigned,
// drained or deregistered.
var ErrKilled = errors.New("killed by a test")
