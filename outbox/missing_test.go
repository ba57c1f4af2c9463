package outbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// missing makes the destination of key m missing until a time after the start.
func (s *stage) missing(appears time.Duration) {
	began := time.Now()
	s.sink(func(r outbox.Row) error {
		if r.Key == "m" && time.Since(began) < appears {
			return fmt.Errorf("%w: no topic", outbox.ErrMissing)
		}
		return nil
	})
}

// keys returns the messages that came since the last call, without their attempts.
func (s *stage) keys() string {
	var out []string
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.got {
		name, _, _ := strings.Cut(text, "@")
		out = append(out, name)
	}
	s.got = nil
	return strings.Join(out, " ")
}

// lane returns the only lane of the subscription.
func (s *stage) lane(t *testing.T) memLane {
	t.Helper()
	sub := s.log.sub("sub")
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	for _, lane := range sub.lanes {
		return *lane
	}
	t.Fatal("there is no lane")
	return memLane{}
}

// TestMissing checks that a message whose destination is missing is tried again for MissingFor, whatever
// MaxAttempts says. Then its key is held, and it continues in order within a minute after the destination
// has appeared.
func TestMissing(t *testing.T) {
	bubble(t, func(s *stage) {
		s.cfg.Retry.MaxAttempts, s.cfg.Retry.MissingFor = 2, 10*time.Minute
		s.missing(3 * time.Hour)
		s.log.publish(m("m", 1), m("m", 2), m("a", 1))
		s.start(1)
		s.after(9 * time.Minute)
		s.want("other keys", "a1@1")
		if lane := s.lane(t); lane.held || lane.resumes || lane.attempts < 10 {
			t.Errorf("after 9 min: %+v", lane)
		}
		s.after(3 * time.Minute)
		if lane := s.lane(t); lane.held || !lane.resumes {
			t.Errorf("after 12 min: %+v, want held until the next attempt", lane)
		}
		s.after(3*time.Hour - 12*time.Minute)
		s.want("before the destination is there")
		s.after(73 * time.Second)
		if got := s.keys(); got != "m1 m2" {
			t.Errorf("after the destination appeared came %q", got)
		}
		s.log.publish(m("m", 3))
		s.after(time.Second)
		s.want("the key is free", "m3@1")
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestMissingAppearsSoon checks that a destination which appears within MissingFor costs no operator anything,
// with any policy.
func TestMissingAppearsSoon(t *testing.T) {
	for _, policy := range []outbox.Policy{outbox.Hold, outbox.Skip, outbox.Drop} {
		t.Run(string(policy), func(t *testing.T) {
			bubble(t, func(s *stage) {
				s.cfg.Policy = policy
				s.missing(14 * time.Minute)
				s.log.publish(m("m", 1), m("m", 2))
				s.start(1)
				s.after(14*time.Minute + 73*time.Second)
				if got := s.keys(); got != "m1 m2" {
					t.Errorf("came %q", got)
				}
				if err := s.drain(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestMissingIsGivenUp checks what the policies skip and drop do after MissingFor, and that a negative
// MissingFor lets the policy decide at once.
func TestMissingIsGivenUp(t *testing.T) {
	for _, c := range []struct {
		policy  outbox.Policy
		missing time.Duration
		after   time.Duration
		dead    int
	}{
		{outbox.Skip, 2 * time.Minute, time.Minute, 0},
		{outbox.Skip, 2 * time.Minute, 4 * time.Minute, 1},
		{outbox.Drop, 2 * time.Minute, 4 * time.Minute, 0},
		{outbox.Skip, -1, time.Second, 1},
	} {
		t.Run(fmt.Sprint(c.policy, c.missing, c.after), func(t *testing.T) {
			bubble(t, func(s *stage) {
				s.cfg.Policy, s.cfg.Retry.MissingFor = c.policy, c.missing
				s.missing(time.Hour)
				s.log.publish(m("m", 1))
				s.start(1)
				s.after(c.after)
				sub := s.log.sub("sub")
				s.log.mu.Lock()
				gone := len(sub.lanes) == 0
				if len(sub.dead) != c.dead || gone != (c.after > c.missing) {
					t.Errorf("%+v: %d are dead, parked no more %v", c, len(sub.dead), gone)
				}
				s.log.mu.Unlock()
				if err := s.drain(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestMissingCountsForItself checks that attempts made while the destination was missing do not count when the message
// fails for another reason afterwards, whenever that is, and that attempts made before do not count as time waited.
func TestMissingCountsForItself(t *testing.T) {
	for _, policy := range []outbox.Policy{outbox.Hold, outbox.Skip, outbox.Drop} {
		for missing := 1; missing <= 14; missing++ {
			t.Run(fmt.Sprint(policy, missing), func(t *testing.T) {
				bubble(t, func(s *stage) {
					s.cfg.Policy = policy
					tries := 0
					s.sink(func(r outbox.Row) error {
						if r.Key != "m" {
							return nil
						}
						switch tries++; {
						case tries <= missing:
							return fmt.Errorf("no topic: %w", outbox.ErrMissing)
						case tries <= missing+9: // one attempt is left
							return errBad
						}
						return nil
					})
					s.log.publish(m("m", 1), m("m", 2))
					s.start(1)
					s.after(time.Hour)
					if got := s.keys(); got != "m1 m2" {
						t.Errorf("after %d attempts came %q", tries, got)
					}
					if err := s.drain(); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// TestMissingIsNoText checks that a failure counts as any other if only its text looks like that of a missing destination.
func TestMissingIsNoText(t *testing.T) {
	bubble(t, func(s *stage) {
		s.cfg.Policy, s.cfg.Retry.MaxAttempts = outbox.Skip, 3
		s.sink(func(outbox.Row) error { return errors.New(outbox.ErrMissing.Error()) })
		s.log.publish(m("m", 1))
		s.start(1)
		s.after(time.Hour)
		if dead := s.log.sub("sub").dead; len(dead) != 1 || dead[0].Attempts != 3 {
			t.Errorf("dead: %v", dead)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestOtherFailuresAreNoTimeWaited checks that a message which has failed for other reasons still waits for its destination.
func TestOtherFailuresAreNoTimeWaited(t *testing.T) {
	bubble(t, func(s *stage) {
		s.cfg.Policy, s.cfg.Retry.MaxAttempts = outbox.Skip, 20
		tries, began := 0, time.Time{}
		s.sink(func(outbox.Row) error {
			switch tries++; {
			case tries < 15:
				return errBad
			case tries == 15:
				began = time.Now()
			}
			if time.Since(began) < 13*time.Minute {
				return outbox.ErrMissing
			}
			return nil
		})
		s.log.publish(m("m", 1))
		s.start(1)
		s.after(3 * time.Hour)
		if got := s.keys(); got != "m1" {
			t.Errorf("after %d attempts came %q", tries, got)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestBothReasonsAlternate checks that a message is tried at most about twice a minute while it fails for want of its destination and
// for another reason in turn, although its attempts are counted anew each time.
func TestBothReasonsAlternate(t *testing.T) {
	bubble(t, func(s *stage) {
		tries := 0
		s.sink(func(outbox.Row) error {
			if tries++; tries%2 == 0 {
				return outbox.ErrMissing
			}
			return errBad
		})
		s.log.publish(m("m", 1))
		s.start(1)
		s.after(time.Hour)
		if tries < 60 || tries > 130 {
			t.Errorf("%d attempts in an hour, want about 120", tries)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}
