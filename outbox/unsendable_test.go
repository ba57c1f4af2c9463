package outbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// TestUnsendable tests a message with a header that no protocol can carry, as a publisher in another
// language may write it. It must be dead at once with the cause, its key must go on under every policy,
// and the sink must never get it.
func TestUnsendable(t *testing.T) {
	for _, policy := range []outbox.Policy{outbox.Hold, outbox.Skip, outbox.Drop} {
		t.Run(string(policy), func(t *testing.T) {
			bubble(t, func(s *stage) {
				s.sink(func(r outbox.Row) error {
					if len(r.Headers) > 0 {
						t.Errorf("%s was given to the sink", r.Payload)
					}
					return nil
				})
				s.cfg.Policy = policy
				s.start(1)
				bad := m("a", 2)
				bad.Headers = map[string]string{"x-note": "one\r\nx-admin: true"}
				s.log.publish(m("a", 1), bad, m("a", 3))
				s.after(time.Hour)
				s.want("delivered", "a1@1", "a3@1")
				if err := s.drain(); err != nil {
					t.Error(err)
				}
				sub := s.log.sub("sub")
				if policy == outbox.Drop {
					if len(sub.dead) != 0 {
						t.Errorf("kept %+v", sub.dead)
					}
				} else if len(sub.dead) != 1 || sub.dead[0].Attempts != 1 || !strings.Contains(sub.dead[0].Cause, `header "x-note" has control characters`) {
					t.Errorf("dead letters %+v", sub.dead)
				}
				if len(sub.lanes) != 0 {
					t.Errorf("lanes %+v", sub.lanes)
				}
			})
		})
	}
}
