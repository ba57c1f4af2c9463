package coordinatortest_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
)

// A test of an agent: it goes on elsewhere when its node dies. Inside the bubble this takes no real
// time.
func Example() {
	testReports := func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3})
			c.Register(daemon.Spec{ID: "acme:reports"}, daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
				select { // the agent under test
				case <-ctx.Done():
					return ctx.Err()
				case <-a.Draining():
					return nil
				}
			}))
			c.WaitUntil("it runs", func() bool { return c.Holder("acme:reports/0") >= 0 })
			first := c.Holder("acme:reports/0")
			c.Kill(first)
			c.WaitUntil("it runs elsewhere", func() bool {
				h := c.Holder("acme:reports/0")
				return h >= 0 && h != first
			})
		})
	}
	_ = testReports // go test runs it as TestReports
}
