package blob

import "time"

// RetryPolicy bounds the repetitions of one call to a store across a network. Its zero value is
// usable.
type RetryPolicy struct {
	AttemptTimeout time.Duration // of one request; 0 is 15 s, plus 1 s for each MiB
	Limit          time.Duration // of a call whose context has no deadline; 0 is 1 min
	Pause          time.Duration // before the second attempt, doubling up to 40 times; 0 is 50 ms
}
