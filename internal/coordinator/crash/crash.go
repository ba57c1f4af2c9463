// Package crash lets tests end a coordinator the way kill -9 would: without a clean stop.
package crash

import "errors"

// ErrKilled is the cause of a context whose end makes Run return at once, without resigning,
// draining or deregistering.
var ErrKilled = errors.New("killed by a test")
