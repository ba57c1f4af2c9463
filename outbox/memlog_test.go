package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/outbox"
)

// memLog implements [outbox.Log] in memory, with one range per subscription, in the simplest form. Relays
// are tested against it without a database and with a fake clock.
type memLog struct {
	replayed int64 // the same for all subscriptions
	mu       sync.Mutex
	rows     []outbox.Row
	subs     map[string]*memSub
	wake     chan struct{}
	// fail, if set, may refuse a call; takes returns how long a call takes.
	fail  func(call string) error
	takes func(call string) time.Duration
	// misplaced are outcomes that were stored with the position of another page.
	misplaced []string
}

type memSub struct {
	at, rev int
	epoch   int64
	lanes   map[string]*memLane // by key, or by seq
	dead    []outbox.Outcome
	paused  bool
	faults  []string // each text that was stored
	problem string   // the text that is stored
}

type memLane struct {
	rows     []outbox.Row
	held     bool // until an operator acts
	resumes  bool // held, but tried again by itself
	missing  bool // the cause is an ErrMissing
	attempts int
	next     time.Time
}

func newMemLog() *memLog { return &memLog{subs: map[string]*memSub{}, wake: make(chan struct{}, 1)} }

func (l *memLog) publish(messages ...outbox.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range messages {
		l.rows = append(l.rows, outbox.Row{Message: m, Seq: int64(len(l.rows) + 1), Shard: m.Shard(), CreatedAt: time.Now(), Attempt: 1})
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *memLog) sub(name string) *memSub {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subs[name] == nil {
		l.subs[name] = &memSub{lanes: map[string]*memLane{}}
	}
	return l.subs[name]
}

// parked returns how many keys of a subscription have a lane.
func (l *memLog) parked(name string) int {
	s := l.sub(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(s.lanes)
}

// pause pauses or resumes a subscription.
func (l *memLog) pause(name string, paused bool) {
	s := l.sub(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	s.paused = paused
}

// position returns up to which message a subscription is stored.
func (l *memLog) position(name string) int {
	s := l.sub(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.at
}

func (l *memLog) refuse(call string) error {
	if l.fail == nil {
		return nil
	}
	return l.fail(call)
}

func (l *memLog) WakeUps(context.Context) <-chan struct{} { return l.wake }

func (l *memLog) Claim(_ context.Context, c outbox.ClaimRequest) (outbox.Cursor, error) {
	s := l.sub(c.Subscription)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.refuse("claim"); err != nil {
		return nil, err
	}
	if s.epoch > c.Epoch {
		return nil, &outbox.FencedError{Floor: s.epoch}
	}
	s.epoch, s.problem = c.Epoch, ""
	s.rev++
	cur := &memCursor{l: l, s: s, rev: s.rev, at: s.at}
	for _, lane := range s.lanes {
		if key := lane.rows[0].Key; key != "" {
			cur.parked = append(cur.parked, key)
		}
	}
	return cur, nil
}

func (l *memLane) store(o outbox.Outcome) {
	l.held, l.resumes = o.Kind == outbox.Held && o.RetryIn == 0, o.Kind == outbox.Held && o.RetryIn > 0
	l.missing = strings.HasPrefix(o.Cause, outbox.ErrMissing.Error())
	l.attempts, l.next = o.Attempts, time.Now().Add(o.RetryIn)
}

type memCursor struct {
	l       *memLog
	s       *memSub
	rev, at int
	parked  []string
}

func (c *memCursor) Parked() []string { return c.parked }
func (c *memCursor) Close()           {}

// locked runs a call under the lock, unless fail refuses it.
func (c *memCursor) locked(call string, do func() error) error {
	if c.l.takes != nil {
		time.Sleep(c.l.takes(call))
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if err := c.l.refuse(call); err != nil {
		return err
	}
	if c.rev != c.s.rev && call != "next" { // a log need not refuse reads
		return outbox.ErrMoved
	}
	return do()
}

func (c *memCursor) Next(_ context.Context, limit outbox.Limit) (page outbox.Page, err error) {
	page.Replayed = c.l.replayed
	err = c.locked("next", func() error {
		for _, lane := range c.s.lanes {
			page.Due = page.Due || !lane.held && !lane.next.After(time.Now())
		}
		if page.Paused = c.s.paused; page.Paused {
			page.Due = false
			return nil
		}
		n := min(limit.Rows, len(c.l.rows)-c.at)
		page.Rows = slices.Clone(c.l.rows[c.at : c.at+n])
		if c.at += n; n > 0 {
			page.Mark = c.at
		}
		page.More = c.at < len(c.l.rows)
		return nil
	})
	return page, err
}

func laneOf(r outbox.Row) string {
	if r.Key != "" {
		return "key " + r.Key
	}
	return fmt.Sprint("seq ", r.Seq)
}

func (c *memCursor) Advance(_ context.Context, to outbox.Mark, outcomes []outbox.Outcome) error {
	return c.locked("advance", func() error {
		before := c.s.at
		c.s.at = to.(int)
		for _, o := range outcomes {
			if at := int(o.Row.Seq); at <= before || at > c.s.at {
				c.l.misplaced = append(c.l.misplaced, fmt.Sprintf("the outcome of message %d with the position from %d to %d", at, before, c.s.at))
			}
			switch o.Kind {
			case outbox.Dead:
				c.s.dead = append(c.s.dead, o)
			case outbox.Waiting, outbox.Held, outbox.Behind:
				lane := c.s.lanes[laneOf(o.Row)]
				if lane == nil {
					lane = &memLane{next: time.Now()}
					c.s.lanes[laneOf(o.Row)] = lane
				}
				lane.rows = append(lane.rows, o.Row)
				if n := len(lane.rows); n > 1 && lane.rows[n-2].Seq > o.Row.Seq {
					slices.SortFunc(lane.rows, func(a, b outbox.Row) int { return int(a.Seq - b.Seq) })
				}
				switch {
				case o.Kind != outbox.Behind:
					lane.store(o)
				case lane.rows[0].Seq == o.Row.Seq: // before all others
					lane.held, lane.resumes, lane.missing, lane.attempts, lane.next = false, false, false, 0, time.Now()
				}
			}
		}
		return nil
	})
}

func (c *memCursor) Due(_ context.Context, limit int) (out [][]outbox.Row, err error) {
	err = c.locked("due", func() error {
		if c.s.paused {
			return nil
		}
		for _, lane := range c.s.lanes {
			if lane.held || lane.next.After(time.Now()) || len(out) == limit {
				continue
			}
			n := 100
			if lane.attempts > 0 {
				n = 1
			}
			rows := slices.Clone(lane.rows[:min(len(lane.rows), n)])
			rows[0].Attempt, rows[0].Missing = lane.attempts+1, lane.missing
			out = append(out, rows)
		}
		return nil
	})
	return out, err
}

func (c *memCursor) StoreParked(_ context.Context, outcomes []outbox.Outcome) (emptied []string, err error) {
	err = c.locked("settle", func() error {
		for _, o := range outcomes {
			lane := c.s.lanes[laneOf(o.Row)]
			switch o.Kind {
			case outbox.Behind:
				continue
			case outbox.Waiting, outbox.Held:
				if lane.rows[0].Seq == o.Row.Seq {
					lane.store(o)
				}
				continue
			case outbox.Dead:
				c.s.dead = append(c.s.dead, o)
			}
			if lane.rows[0].Seq == o.Row.Seq {
				lane.rows = lane.rows[1:]
			} else {
				lane.rows = slices.DeleteFunc(lane.rows, func(r outbox.Row) bool { return r.Seq == o.Row.Seq })
			}
			lane.attempts, lane.missing, lane.next = 0, false, time.Now()
			if len(lane.rows) == 0 {
				delete(c.s.lanes, laneOf(o.Row))
				emptied = append(emptied, o.Row.Key)
			}
		}
		return nil
	})
	return emptied, err
}

func (c *memCursor) SetProblem(_ context.Context, text string) error {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.rev == c.s.rev {
		c.s.faults, c.s.problem = append(c.s.faults, text), text
	}
	return c.l.refuse("trouble")
}

func (c *memCursor) Promote(context.Context, int) (int, error) { return 0, nil }
