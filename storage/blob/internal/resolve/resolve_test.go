package resolve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/storage/blob"
)

// scene is a store for one key, and the network's effect on the requests of a call.
type scene struct {
	now    ObjectInfo
	send   []Effect // verdicts of the attempts, in order; the last one repeats
	apply  []bool   // whether an attempt happens in spite of its effect
	stat   []Effect
	before func(n int) // runs before read n
	sent   int
	reads  int
}

func at[T any](list []T, n int) (v T) {
	if len(list) == 0 {
		return v
	}
	return list[min(n, len(list)-1)]
}

func (s *scene) call(old blob.Version) Call {
	kind := blob.ErrExists
	if old != "" {
		kind = blob.ErrChanged
	}
	c := Call{Op: "create", Key: "k", Nonce: "mine", Kind: kind, Old: old}
	c.Send = func(context.Context) Answer {
		effect, happens := at(s.send, s.sent), at(s.apply, s.sent)
		s.sent++
		if holds := s.now.Version == old; effect == Done && !holds {
			effect = Refused
		} else if holds && (effect == Done || happens) {
			s.now = ObjectInfo{Exists: true, Nonce: "mine", Version: "v-mine"}
		}
		return Answer{Effect: effect, Version: "v-mine", Err: cause(effect)}
	}
	c.Stat = func(context.Context) (ObjectInfo, Answer) {
		if s.before != nil {
			s.before(s.reads)
		}
		effect := at(s.stat, s.reads)
		s.reads++
		return s.now, Answer{Effect: effect, Err: cause(effect)}
	}
	return c
}

func cause(v Effect) *blob.Error {
	switch v {
	case Done, Refused:
		return nil
	case Failed:
		return &blob.Error{Kind: blob.ErrDenied}
	}
	return &blob.Error{Kind: blob.ErrUnavailable, Err: errors.New("trouble")}
}

var (
	other   = ObjectInfo{Exists: true, Nonce: "other", Version: "v-other"}
	another = ObjectInfo{Exists: true, Nonce: "another", Version: "v-another"}
)

// TestWrite is the table of the package comment.
func TestWrite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		scene   scene
		old     blob.Version
		want    error // nil is success
		unknown bool
		sent    int
	}{
		{name: "plain", scene: scene{send: []Effect{Done}}, sent: 1},
		{name: "refused", scene: scene{now: other, send: []Effect{Done}}, want: blob.ErrExists, sent: 1},
		{name: "stale", scene: scene{now: other, send: []Effect{Done}}, old: "v-old", want: blob.ErrChanged, sent: 1},
		{name: "replaced", scene: scene{now: other, send: []Effect{Done}}, old: "v-other", sent: 1},
		{name: "lost reply", scene: scene{send: []Effect{Unknown}, apply: []bool{true}}, sent: 1},
		{name: "lost request", scene: scene{send: []Effect{Unknown, Done}}, sent: 2},
		{name: "lost request of a replacement", scene: scene{now: other, send: []Effect{Unknown, Done}}, old: "v-other", sent: 2},
		{name: "lost, and another was first", scene: scene{now: other, send: []Effect{Unknown}}, want: blob.ErrExists, unknown: true, sent: 1},
		{name: "lost many times", scene: scene{send: []Effect{Unknown, Unknown, Unknown, Done}}, sent: 4},
		{name: "lost, cannot read at first", scene: scene{send: []Effect{Unknown}, apply: []bool{true}, stat: []Effect{Unknown, NotSent, Done}}, sent: 1},
		{name: "lost, may not read", scene: scene{send: []Effect{Unknown}, stat: []Effect{Failed}}, want: blob.ErrDenied, unknown: true, sent: 1},
		{name: "conflict", scene: scene{send: []Effect{Conflict, Done}}, sent: 2},
		{name: "conflict, and another was first", scene: scene{now: other, send: []Effect{Conflict}}, want: blob.ErrExists, sent: 1},
		{name: "own write refused after a resend", scene: scene{send: []Effect{Refused}, apply: []bool{true}}, sent: 1},
		{name: "not sent", scene: scene{send: []Effect{NotSent, NotSent, Done}}, sent: 3},
		{name: "refused though nothing is there", scene: scene{send: []Effect{Refused, Done}}, sent: 2},
		{name: "always refused", scene: scene{send: []Effect{Refused}}, want: blob.ErrExists, sent: maxRefusals},
		{name: "refused, may not read", scene: scene{send: []Effect{Refused}, stat: []Effect{Failed}}, want: blob.ErrExists, sent: 1},
		{name: "denied", scene: scene{send: []Effect{Failed}}, want: blob.ErrDenied, sent: 1},
		{name: "doubt, then denied", scene: scene{send: []Effect{Unknown, Failed}}, want: blob.ErrDenied, unknown: true, sent: 2},
		{name: "doubt, then not sent", scene: scene{send: []Effect{Unknown, NotSent, Done}}, sent: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				v, err := Policy{}.Write(t.Context(), c.scene.call(c.old))
				if c.want == nil && (err != nil || v != "v-mine") || !errors.Is(err, c.want) {
					t.Fatalf("got %q, %v; want %v", v, err, c.want)
				}
				if err != nil && errors.Is(err, blob.ErrUnknownOutcome) != c.unknown || err != nil && blob.NotApplied(err) == c.unknown {
					t.Errorf("got %v, want unknown outcome %v", err, c.unknown)
				}
				if c.scene.sent != c.sent {
					t.Errorf("sent %d times, want %d", c.scene.sent, c.sent)
				}
			})
		})
	}
}

// TestReplacedBeforeTheRead: the caller's write happened and was replaced. The error does not say
// that it has not happened.
func TestReplacedBeforeTheRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := scene{now: other, send: []Effect{Unknown}, apply: []bool{true}}
		s.before = func(int) { s.now = another }
		_, err := Policy{}.Write(t.Context(), s.call("v-other"))
		if !errors.Is(err, blob.ErrChanged) || blob.NotApplied(err) {
			t.Errorf("got %v, want ErrChanged of unknown outcome", err)
		}
	})
}

// TestMetadataAndVersionOfDifferentMoments: a store answers the first read with the caller's nonce
// and the version of the next write. Using that version would overwrite the next write.
func TestMetadataAndVersionOfDifferentMoments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := scene{send: []Effect{Unknown}, apply: []bool{true}}
		s.before = func(n int) {
			if s.now = another; n == 0 {
				s.now.Nonce = "mine"
			}
		}
		c := s.call("")
		c.ReadTwice = true
		v, err := Policy{}.Write(t.Context(), c)
		if !errors.Is(err, blob.ErrExists) || blob.NotApplied(err) {
			t.Errorf("got %q, %v, want ErrExists of unknown outcome", v, err)
		}
		s = scene{send: []Effect{Unknown}, apply: []bool{true}}
		c = s.call("")
		c.ReadTwice = true
		if v, err := (Policy{}).Write(t.Context(), c); err != nil || v != "v-mine" || s.reads != 2 {
			t.Errorf("got %q, %v after %d reads, want success after 2", v, err, s.reads)
		}
	})
}

// TestDoubtIsKept: a refusal after an attempt with unknown outcome makes nothing certain.
func TestDoubtIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := scene{send: []Effect{Unknown, Done}}
		s.before = func(n int) {
			if n == 1 {
				s.now = another
			}
		}
		c := s.call("")
		plain := c.Send
		c.Send = func(ctx context.Context) Answer {
			if s.sent == 1 {
				s.now = other // another writer is faster than the second attempt
			}
			return plain(ctx)
		}
		_, err := Policy{}.Write(t.Context(), c)
		if !errors.Is(err, blob.ErrExists) || blob.NotApplied(err) || s.sent != 2 {
			t.Errorf("got %v after %d attempts", err, s.sent)
		}
	})
}

// TestItEnds: a call ends with the context or with the limit, and not before it has tried for most
// of that time.
func TestItEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		effect  Effect
		timeout time.Duration // 0 is none
		within  time.Duration
		unknown bool
	}{
		{Unknown, 10 * time.Second, 10 * time.Second, true},
		{NotSent, 10 * time.Second, 10 * time.Second, false},
		{Conflict, 10 * time.Second, 10 * time.Second, false},
		{Unknown, 0, time.Minute, true},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if c.timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.timeout)
					defer cancel()
				}
				begin := time.Now()
				s := scene{send: []Effect{c.effect}, stat: []Effect{Unknown}}
				_, err := Policy{}.Write(ctx, s.call(""))
				if took := time.Since(begin); took > c.within || took < c.within/2 {
					t.Errorf("took %s, want up to %s", took, c.within)
				}
				if !errors.Is(err, context.DeadlineExceeded) || blob.NotApplied(err) == c.unknown || strings.Contains(err.Error(), "\n") {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestWithoutRetries: a caller that repeats its calls itself gets the store's first refusal. Only a condition that does not
// hold is checked.
func TestWithoutRetries(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		effect      Effect
		reads       int
		kind        error
		unknown     bool
		otherExists bool
	}{
		{effect: Done},
		{effect: Unknown, kind: blob.ErrUnknownOutcome, unknown: true},
		{effect: NotSent, kind: blob.ErrUnavailable},
		{effect: Conflict, kind: blob.ErrUnavailable},
		{effect: Failed, kind: blob.ErrDenied},
		{effect: Done, otherExists: true, reads: 1, kind: blob.ErrExists},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := scene{send: []Effect{c.effect}}
			if c.otherExists {
				s.now = other
			}
			_, err := Policy{}.Write(backoff.Once(t.Context()), s.call(""))
			if !errors.Is(err, c.kind) || err != nil && blob.NotApplied(err) == c.unknown || s.sent != 1 || s.reads != c.reads {
				t.Errorf("%+v: %v after %d requests and %d readings", c, err, s.sent, s.reads)
			}
		})
	}
}

// TestOneDeadConnection does not use up the call.
func TestOneDeadConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := scene{send: []Effect{Done}}
		c := s.call("")
		plain, hangs := c.Send, true
		c.Send = func(ctx context.Context) Answer {
			if hangs {
				hangs = false
				<-ctx.Done()
				return Transport(ctx, ctx.Err())
			}
			return plain(ctx)
		}
		begin := time.Now()
		if _, err := (Policy{}).Write(ctx, c); err != nil || time.Since(begin) > 20*time.Second {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
	})
}

func TestRetryAfterIsObeyed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		begin := time.Now()
		send := func(context.Context) Answer {
			if n++; n == 1 {
				return Answer{Effect: NotSent, Err: &blob.Error{Kind: blob.ErrThrottled, RetryAfter: 7 * time.Second}}
			}
			return Answer{}
		}
		if _, err := (Policy{}).Repeat(t.Context(), Call{Send: send}, true); err != nil || time.Since(begin) != 7*time.Second {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
		// A wait that is longer than the call may take is not begun.
		n = 0
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		begin = time.Now()
		_, err := Policy{}.Repeat(ctx, Call{Op: "write", Key: "k", Send: send}, true)
		if !errors.Is(err, blob.ErrThrottled) || !blob.NotApplied(err) || blob.RetryAfter(err) != 7*time.Second || time.Since(begin) != 0 {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
	})
}

func TestRepeatKeepsTheDoubtOfWritesOnly(t *testing.T) {
	t.Parallel()
	for _, writes := range []bool{true, false} {
		n := 0
		send := func(context.Context) Answer {
			if n++; n == 1 {
				return Answer{Effect: Unknown, Err: &blob.Error{Kind: blob.ErrUnavailable}}
			}
			return Answer{Effect: Failed, Err: &blob.Error{Kind: blob.ErrDenied}}
		}
		_, err := Policy{RetryPolicy: blob.RetryPolicy{Pause: time.Microsecond}}.Repeat(t.Context(), Call{Send: send}, writes)
		if !errors.Is(err, blob.ErrDenied) || blob.NotApplied(err) == writes {
			t.Errorf("writes %v: got %v", writes, err)
		}
	}
}

func TestTransport(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	dial := &net.OpError{Op: "dial", Err: errors.New("refused")}
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want Effect
	}{
		{t.Context(), errors.New("reset"), Unknown},
		{t.Context(), &net.OpError{Op: "read", Err: errors.New("reset")}, Unknown},
		{t.Context(), dial, NotSent},
		{t.Context(), &url.Error{URL: "https://h/?X-Amz-Signature=hunter2", Err: dial}, NotSent},
		{t.Context(), &net.DNSError{Err: "no such host"}, NotSent},
		{ended, dial, NotSent},
		{ended, context.Canceled, Unknown},
	} {
		got := Transport(c.ctx, c.err)
		if got.Effect != c.want || strings.Contains(got.Err.Error(), "hunter2") {
			t.Errorf("%v: got %v: %v, want %v", c.err, got.Effect, got.Err, c.want)
		}
	}
}

type strange struct{ http.RoundTripper }

// TestNoConnection: a request that ended while it waited for a connection was not sent. One that
// had a connection may have been sent, and so may one over a transport that does not report
// connections.
func TestNoConnection(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		client      *http.Client
		wanted, got bool
		want        Effect
	}{
		{&http.Client{Transport: strange{}}, true, false, NotSent},
		{&http.Client{Transport: strange{}}, true, true, Unknown},
		{&http.Client{Transport: strange{}}, false, false, Unknown},
		{&http.Client{Transport: strange{}}, false, true, Unknown},
		{&http.Client{Transport: &http.Transport{}}, false, false, NotSent},
		{&http.Client{}, false, false, NotSent},
		{nil, false, false, NotSent},
		{nil, true, true, Unknown},
	} {
		answer := Over(c.client, blob.RetryPolicy{}).once(t.Context(), 0, func(ctx context.Context) Answer {
			trace := httptrace.ContextClientTrace(ctx)
			if c.wanted {
				trace.GetConn("host:443")
			}
			if c.got {
				trace.GotConn(httptrace.GotConnInfo{})
			}
			return Answer{Effect: Unknown}
		})
		if answer.Effect != c.want {
			t.Errorf("%+v: got %v", c, answer.Effect)
		}
	}
}

func TestStatusNeverClaimsTooMuch(t *testing.T) {
	t.Parallel()
	for code := 300; code < 600; code++ {
		effect, _ := Status(code)
		if doubtful := effect == Unknown; doubtful != (code == 408 || code >= 500 && code != 501) {
			t.Errorf("status %d: effect %v", code, effect)
		}
	}
	for value, want := range map[string]time.Duration{"": 0, "x": 0, "-1": 0, "3": 3 * time.Second, "3600": time.Minute, "99999999999": time.Minute} {
		if got := RetryAfter(http.Header{"Retry-After": {value}}); got != want {
			t.Errorf("Retry-After %q: %s, want %s", value, got, want)
		}
	}
}
