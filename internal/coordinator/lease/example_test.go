package lease_test

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
)

// The timings of a cluster that replaces a dead leader sooner, and for how long a node may trust its lease after it
// last heard from the store.
func Example() {
	t := lease.Fast()
	t.LeaseDuration = 10 * time.Second
	t.NodeRegistrationTTL = 12 * time.Second
	if err := t.Validate(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("trusted for less than the lease:", t.ValidFor(t.LeaseDuration) < t.LeaseDuration)
	// Output: trusted for less than the lease: true
}
