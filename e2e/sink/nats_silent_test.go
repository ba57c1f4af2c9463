package sink_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/emitd/emitd/outbox"
	sinkpkg "github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/nats"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// TestNATSUnansweredAreForgotten checks that messages to which nobody answers do not use up for ever what the client can
// wait for, and that the sink is down, at the cost of no attempt, while they do.
func TestNATSUnansweredAreForgotten(t *testing.T) {
	t.Parallel()
	b := newBroker(t, &server.Options{})
	const most = 16 * 2 // messages that the sink waits for
	arrived := make(chan struct{}, most)
	if _, err := b.js.Conn().Subscribe("silent", func(*natsgo.Msg) { arrived <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	must(t, b.js.Conn().Flush())
	s := b.open(t, nats.Config{Parallel: 2, Timeout: 2 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls sync.WaitGroup
	for range most / 2 {
		calls.Go(func() {
			s.Deliver(ctx, outbox.Delivery{Subscription: "billing", Range: "0-63", Epoch: 5, Rows: sinktest.Rows("silent", 2, 0)})
		})
	}
	for range most {
		<-arrived
	}
	cancel()
	calls.Wait()
	rows := sinktest.Rows("orders", 3, 3)
	all(t, deliver(t, s, "0-63", 5, rows), outbox.ErrSinkDown)
	eventually(t, "it is delivered when those without an answer are forgotten", func() bool {
		for _, err := range deliver(t, s, "0-63", 5, rows) {
			if err != nil && !errors.Is(err, outbox.ErrSinkDown) {
				t.Error(err)
			}
			if err != nil {
				return false
			}
		}
		return true
	})
}

// TestNATSPermissionIsGranted checks that silence about a subject is no longer put down to a permission that the user has
// got meanwhile.
func TestNATSPermissionIsGranted(t *testing.T) {
	t.Parallel()
	admin := &server.User{Username: "admin", Password: "p"}
	denied := &server.User{Username: "u", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"secret"}}}}
	opts := &server.Options{Users: []*server.User{admin, denied}, NoAuthUser: "admin"}
	b := newBroker(t, opts)
	if _, err := b.js.Conn().Subscribe("secret", func(*natsgo.Msg) {}); err != nil {
		t.Fatal(err)
	}
	s := b.open(t, nats.Config{URL: sinkpkg.Secret(b.server.ClientURL()), User: "u", Password: "p", Timeout: 100 * time.Millisecond})
	fails := func(text string) func() bool {
		return func() bool {
			return strings.Contains(deliver(t, s, "0-63", 5, sinktest.Rows("secret", 1, 1))[0].Error(), text)
		}
	}
	eventually(t, "the server refuses", fails("Permissions Violation"))
	granted := opts.Clone()
	granted.Users = []*server.User{admin, {Username: "u", Password: "p"}}
	must(t, b.server.ReloadOptions(granted))
	eventually(t, "the silence is that of the receiver", fails("not confirmed"))
}
