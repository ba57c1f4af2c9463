package nats

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/progress"
	"github.com/emitd/emitd/outbox/sink"
)

// Messages in flight to one stream are a chain: each is published on the condition that the newest message of
// the stream is the one before it (Nats-Expected-Last-Msg-Id). When the stream does not take a message, or it
// is lost on the way, the stream refuses all that follow. Those of other keys are then published in another
// chain.
//
// A message of another publisher to the stream breaks the chain as well. Then messages go one after the other
// within their keys, and chains are tried again after a pause.

const (
	codeWrongLastID = 10070 // the newest message is not the one that was expected

	// chainRounds is how many chains a call makes at most; what is left then goes one by one.
	chainRounds = 4
	// chainPause is the pause after the first chain that another publisher broke; it doubles up to
	// chainMaxPause.
	chainPause    = 100 * time.Millisecond
	chainMaxPause = 10 * time.Second
)

// chains is what is known about the chains of a stream.
type chains struct {
	pause time.Duration // the newest pause; 0 after a whole chain
	next  time.Time     // no chain is made before
}

// mayChain reports whether messages of a stream may be published as a chain now.
func (s *Sink) mayChain(stream string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !time.Now().Before(s.chains[stream].next)
}

// chained records whether another publisher broke a chain.
func (s *Sink) chained(stream string, broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c chains
	if broken {
		c.pause = min(max(2*s.chains[stream].pause, chainPause), chainMaxPause)
		c.next = time.Now().Add(c.pause)
	}
	s.chains[stream] = c
}

// boundTo is the stream that binds a subject, as last known.
type boundTo struct {
	stream string // "" if it is not known
	until  time.Time
}

const (
	maxSubjects   = 10_000          // whose streams are remembered
	lookupTimeout = time.Second     // how long an answer may take
	lookupTTL     = 5 * time.Minute // when an answer is too old
)

// streamOf returns the stream that binds a subject, "" if that is not known. Then its messages are not chained.
func (s *Sink) streamOf(ctx context.Context, subject string) string {
	if s.cfg.Stream != "" || !valid(subject) {
		return s.cfg.Stream
	}
	s.mu.Lock()
	known := s.subjects[subject]
	s.mu.Unlock()
	if time.Now().Before(known.until) {
		return known.stream
	}
	bounded, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	name, err := s.js.StreamNameBySubject(bounded, subject)
	if ctx.Err() != nil {
		return ""
	}
	if err != nil {
		name = "" // there is none, or this user may not ask: publishing tells
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.subjects) >= maxSubjects {
		clear(s.subjects)
	}
	s.subjects[subject] = boundTo{name, time.Now().Add(lookupTTL)}
	return name
}

// chain is a call of [Sink.publishChained] in progress.
type chain struct {
	s      *Sink
	d      outbox.Delivery
	rows   []int // of the delivery
	errs   []error
	failed map[string]int // the first place of a failed row of a key
	// A silent row has no answer although those behind it have. Its key waits, and others go on.
	silent []link
	behind map[string][]int // rows of the keys of silent rows
}

// link is a message of a chain in flight.
type link struct {
	n      int // place in chain.rows
	future jetstream.PubAckFuture
	ack    *jetstream.PubAck
	err    error
}

func (l *link) answered() bool { return l.ack != nil || l.err != nil }

// publishChained publishes rows of one stream in chains, and returns an error for each, nil if the stream has
// it.
func (s *Sink) publishChained(ctx context.Context, d outbox.Delivery, rows []int, stream string) []error {
	c := &chain{s: s, d: d, rows: rows, errs: make([]error, len(rows)), failed: map[string]int{}, behind: map[string][]int{}}
	rest := make([]int, len(rows))
	for n := range rest {
		rest[n] = n
	}
	for round := 0; len(rest) > 1 && round < chainRounds && ctx.Err() == nil && s.mayChain(stream); round++ {
		var broken bool
		rest, broken = c.round(ctx, rest)
		s.chained(stream, broken)
	}
	c.oneByOne(ctx, rest)
	c.awaitSilent(ctx)
	return c.errs
}

// oneByOne publishes rows without a chain.
func (c *chain) oneByOne(ctx context.Context, rest []int) {
	if rest = c.open(rest); len(rest) == 0 {
		return
	}
	part := make([]int, len(rest))
	for k, n := range rest {
		part[k] = c.rows[n]
	}
	for k, err := range c.s.publishSerially(ctx, c.d, part) {
		if err != nil {
			c.errs[rest[k]] = err
		}
	}
}

// round publishes a chain of rows and settles what became of them. It returns those that were refused only
// because the chain broke before them, and whether another publisher broke it.
func (c *chain) round(ctx context.Context, rows []int) (rest []int, broken bool) {
	sent := ctx
	ctx, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the stream", After: c.s.cfg.Timeout})
	defer cancel()
	links, rest := c.send(ctx, rows)
	c.await(ctx, links)
	prove(links)
	stored := false // the message before this one was stored by this chain
	for k := range links {
		l := &links[k]
		row := c.row(l.n)
		switch {
		case l.ack != nil:
			stored = !l.ack.Duplicate
			progress.Taken(sent, c.rows[l.n])
			continue
		case l.err == nil && ctx.Err() == nil:
			c.silent = append(c.silent, *l)
			if row.Key != "" {
				c.behind[row.Key] = nil
			}
		case l.err == nil:
			c.fail(l.n, c.s.unacknowledged(row.Topic, context.Cause(ctx)))
		case c.refusedByChain(row, l.err):
			broken = broken || stored || codeOf(l.err) == codeBusySequence
			rest = append(rest, l.n)
		default:
			c.fail(l.n, c.s.classify(ctx, row.Topic, l.err))
		}
		stored = false
	}
	slices.Sort(rest)
	return c.open(rest), broken
}

// prove counts messages without an answer as taken if a later one was stored: the stream stores none behind one
// that it does not have.
func prove(links []link) {
	stored := false
	for k := len(links) - 1; k >= 0; k-- {
		l := &links[k]
		stored = stored || l.ack != nil && !l.ack.Duplicate
		if !l.answered() && stored {
			l.ack = &jetstream.PubAck{}
		}
	}
}

// awaitSilent waits for the rows without an answer, and then publishes what waits behind them.
func (c *chain) awaitSilent(ctx context.Context) {
	if len(c.silent) == 0 {
		return
	}
	bounded, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the stream", After: c.s.cfg.Timeout})
	defer cancel()
	var rest []int
	for k := range c.silent {
		l := &c.silent[k]
		row := c.row(l.n)
		select {
		case <-l.future.Ok():
			progress.Taken(ctx, c.rows[l.n])
		case err := <-l.future.Err():
			if c.refusedByChain(row, err) {
				rest = append(rest, l.n)
				break
			}
			c.fail(l.n, c.s.classify(bounded, row.Topic, err))
		case <-bounded.Done():
			c.fail(l.n, c.s.unacknowledged(row.Topic, context.Cause(bounded)))
		}
		rest = append(rest, c.behind[row.Key]...)
	}
	c.behind = nil
	c.oneByOne(ctx, rest)
}

func (c *chain) row(n int) outbox.Row { return c.d.Rows[c.rows[n]] }

// refusedByChain reports whether a message was refused for its conditions, so that it may be published again.
func (c *chain) refusedByChain(row outbox.Row, err error) bool {
	switch codeOf(err) {
	case codeWrongLastID:
		return true
	case codeWrongSequence, codeBusySequence:
		if c.s.cfg.Fence { // the marker is read again, and tells who owns the shard
			c.s.forgetMarker(c.s.markerSubject(c.d.Subscription, row.Shard))
		}
		return c.s.cfg.Fence
	}
	return false
}

// fail records the error of a row. The rows behind a failed one of their key are skipped, also one that failed earlier:
// what cannot be sent fails before the answers to those in front of it come.
func (c *chain) fail(n int, err error) {
	c.errs[n] = err
	key := c.row(n).Key
	if key == "" {
		return
	}
	first, has := c.failed[key]
	if !has || n < first {
		c.failed[key] = n
	}
	if later := max(n, first); has && later != c.failed[key] && !halts(c.errs[later]) {
		c.errs[later] = outbox.ErrSkipped
	}
}

// halts reports whether an error holds for all other rows, too.
func halts(err error) bool {
	return errors.Is(err, outbox.ErrSinkDown) || errors.Is(err, outbox.ErrFenced)
}

// isBehindFailed reports whether a row before row n of its key has failed.
func (c *chain) isBehindFailed(n int) bool {
	first, has := c.failed[c.row(n).Key]
	return has && first < n
}

// open returns the rows that may be published, in order, and gives up those behind a failed one of their key.
func (c *chain) open(rest []int) (open []int) {
	var halt error
	for _, err := range c.errs {
		if halt == nil && halts(err) {
			halt = err
		}
	}
	for _, n := range rest {
		key := c.row(n).Key
		_, waits := c.behind[key]
		switch {
		case halt != nil:
			c.errs[n] = halt
		case c.isBehindFailed(n):
			c.errs[n] = outbox.ErrSkipped
		case waits:
			c.behind[key] = append(c.behind[key], n)
		default:
			open = append(open, n)
		}
	}
	return open
}

// send publishes rows as a chain, without waiting for answers. One chain is sent at a time, so that no other
// delivery's messages get in between. It also returns rows that must wait for another chain.
func (c *chain) send(ctx context.Context, rows []int) (links []link, rest []int) {
	select {
	case c.s.sending <- struct{}{}:
		defer func() { <-c.s.sending }()
	case <-ctx.Done():
		return nil, rows
	}
	links = make([]link, 0, len(rows))
	last := "" // ID of the message before
	for k, n := range rows {
		row := c.row(n)
		if c.isBehindFailed(n) {
			c.errs[n] = outbox.ErrSkipped
			continue
		}
		opts, err := c.conditions(ctx, row, last)
		l := link{n: n}
		if err == nil {
			l.future, err = c.s.js.PublishMsgAsync(message(c.d, row), opts...)
			if err != nil {
				err = c.s.classify(ctx, row.Topic, err)
			}
		}
		if err != nil { // it was not sent
			c.fail(n, err)
			if halts(err) || ctx.Err() != nil {
				return links, rows[k+1:]
			}
			continue
		}
		links, last = append(links, l), row.ID.String()
	}
	return links, nil
}

// conditions returns the options of a message behind the one with the ID last, "" for the first.
func (c *chain) conditions(ctx context.Context, row outbox.Row, last string) ([]jetstream.PublishOpt, error) {
	if !valid(row.Topic) {
		return nil, sink.Permanent("publish: the topic %.80q is not a valid subject", row.Topic)
	}
	opts := []jetstream.PublishOpt{jetstream.WithMsgID(row.ID.String())}
	if c.s.cfg.Stream != "" {
		opts = append(opts, jetstream.WithExpectStream(c.s.cfg.Stream))
	}
	if last != "" {
		opts = append(opts, jetstream.WithExpectLastMsgID(last))
	}
	if c.s.cfg.Fence {
		m, err := c.s.ownMarker(ctx, c.d, row.Shard)
		if err != nil {
			return nil, err
		}
		opts = append(opts, jetstream.WithExpectLastSequenceForSubject(m.sequence, m.subject))
	}
	return opts, nil
}

// await waits for the answers to a chain. Once the last message has its answer, the others have theirs, unless
// they were lost or nobody answers them. It does not wait for those, so that other keys go on.
func (c *chain) await(ctx context.Context, links []link) {
	if len(links) == 0 {
		return
	}
	last := &links[len(links)-1]
	whole := true // all before it were taken
	for k := range links {
		l := &links[k]
		if !last.answered() {
			select {
			case l.ack = <-l.future.Ok():
			case l.err = <-l.future.Err():
			case last.ack = <-last.future.Ok():
			case last.err = <-last.future.Err():
			case <-ctx.Done():
				return
			}
		}
		if !l.answered() {
			select {
			case l.ack = <-l.future.Ok():
			case l.err = <-l.future.Err():
			default:
			}
		}
		if whole = whole && l.ack != nil; whole {
			progress.Taken(ctx, c.rows[l.n])
		}
	}
}
