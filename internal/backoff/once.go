package backoff

import "context"

// Once returns a context for a caller that repeats failed calls itself, at a pace of its own. Whoever gets it tries a call once,
// and returns the first failure instead of trying again.
func Once(ctx context.Context) context.Context { return context.WithValue(ctx, once{}, true) }

// Retries reports whether a call may be tried more than once: its context is not from [Once].
func Retries(ctx context.Context) bool { return ctx.Value(once{}) == nil }

type once struct{}
