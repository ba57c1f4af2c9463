package object

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// view is a content of the cluster object with its version in the bucket.
type view struct {
	*cluster
	version blob.Version
}

// step is one change of the cluster object.
type step struct {
	// guess allows the first attempt to start from the content that this process saw last, without a read. If the
	// write succeeds, nothing has changed since. Any other outcome is worked out again after a read.
	guess bool
	// prepare adds to the clone what the step needs from other objects; nil needs nothing.
	prepare func(ctx context.Context, c *cluster, now time.Time) error
	// apply changes the clone and reports whether it is to be written. It may be called several times, each time on
	// another clone. An error is an answer: nothing is written.
	apply func(c *cluster, now time.Time) (bool, error)
}

// maxRounds bounds how often a step starts again because another process was first.
const maxRounds = 100

// run carries a step out and returns the cluster after it. The way of a step: run adds it to the group (group.go)
// and calls attempt. One attempt at a time holds clusterMu; it reads the cluster, or starts from the content seen
// last, and compose applies every waiting step to a clone. writeSegments moves old events to segments, and replace
// writes the clone on the condition that the object has not changed. send and resolveWrite find out the result of a
// write whose answer was lost. The attempt then answers all steps that it wrote. After a conflict, every call waits for a
// jittered pause and tries again, unless another call's attempt has answered its step meanwhile.
func (s *Store) run(ctx context.Context, st step) (*cluster, error) {
	own := s.group.add(st)
	defer s.group.drop(own)
	guess := st.guess
	for round := range maxRounds {
		began := time.Now()
		err := s.attempt(ctx, own, guess)
		if own.answered() {
			return own.c, own.err
		}
		if err != errConflict { //nolint:errorlint // never wrapped
			return nil, err
		}
		// The pause grows with the time that an attempt takes: two processes that collide must get that far apart.
		took := max(time.Since(began), time.Microsecond)
		if !guess {
			if err := own.pause(ctx, min(rand.N(took<<min(round, 4)), maxPause)); err != nil {
				return nil, err
			}
		}
		guess = false
	}
	return nil, fmt.Errorf("%w: other processes wrote first %d times in a row", blob.ErrUnavailable, maxRounds)
}

// pause waits for d, or until another call's attempt has answered this step.
func (p *proposal) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// errConflict says that another process was first, or that a guess did not succeed.
var errConflict = errors.New("the cluster object was changed by another process")

// attempt carries a step out once, together with all others that wait. A process runs one attempt at a time,
// because two would only conflict with each other. After errConflict all steps still wait. Any other error concerns
// this step alone; the other calls try for themselves, unless their steps may have been written.
func (s *Store) attempt(ctx context.Context, own *proposal, guess bool) error {
	ctx, release, err := s.lockCluster(ctx, own.ready)
	if err != nil || own.answered() {
		if err == nil {
			release()
		}
		return err
	}
	defer release()
	all, v := s.group.batchOf(own), s.seen.Load()
	careful := slices.ContainsFunc(all, func(p *proposal) bool { return !p.guess })
	if guess = guess && !careful && v != nil && s.pendingWrite == nil; !guess {
		if v, err = s.read(ctx); err != nil {
			return err
		}
	}
	next, answers, err := s.compose(ctx, v, own, all, guess)
	if err != nil {
		return err
	}
	if next != v.cluster {
		if err := s.writeSegments(ctx, next, v.Head); err != nil {
			return err
		}
		err = s.replace(ctx, v, next)
	}
	switch {
	case errors.Is(err, blob.ErrTooLarge) && len(answers) > 1:
		own.alone = true
		return errConflict
	case err != nil && s.pendingWrite != next:
		return err
	}
	for p, a := range answers {
		switch {
		case err != nil:
			a = answer{err: err}
		case a.err == nil:
			a.c = next
		}
		s.group.answer(p, a)
	}
	return nil
}

// compose applies the steps to the content, one after the other. It returns what is to be written (the content
// itself if nothing is) and the answers that are valid after the write. If a step needs another object that cannot
// be read, compose leaves the step out, unless it is the caller's own.
func (s *Store) compose(ctx context.Context, v *view, own *proposal, all []*proposal, guess bool) (*cluster, map[*proposal]answer, error) {
	next, now, answers := v.cluster, s.now(), map[*proposal]answer{}
	for _, p := range all {
		trial := next.clone()
		if p.prepare != nil {
			switch err := p.prepare(ctx, trial, now); {
			case err != nil && p == own:
				return nil, nil, err
			case err != nil:
				continue
			}
		}
		p.mu.Lock()
		if p.abandonedByCaller {
			p.mu.Unlock()
			continue
		}
		write, err := p.apply(trial, now)
		p.mu.Unlock()
		switch {
		case guess && (err != nil || !write):
			return nil, nil, errConflict
		case err == nil && write:
			next = trial
		}
		answers[p] = answer{err: err}
	}
	return next, answers, nil
}

// lockCluster waits until this call may read or write the cluster object, or until needless is closed. The call has until
// the end of held for it: a request that hangs must not stop the others of the process for as long as its caller waits.
func (s *Store) lockCluster(ctx context.Context, needless <-chan struct{}) (held context.Context, release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	select {
	case s.clusterMu <- struct{}{}:
		held, cancel := context.WithTimeout(ctx, s.holdLimit())
		return held, func() { cancel(); <-s.clusterMu }, nil
	case <-needless:
		return ctx, func() {}, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// readCluster reads the cluster as it is now.
func (s *Store) readCluster(ctx context.Context) (*cluster, error) {
	ctx, release, err := s.lockCluster(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer release()
	v, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	return v.cluster, nil
}

// read returns the newest content. That content continues everything that this process has seen, and no earlier
// write of this process can still replace it. The caller holds clusterMu.
func (s *Store) read(ctx context.Context) (*view, error) {
	for range tries {
		v, err := s.fetch(ctx)
		if err != nil {
			return nil, err
		}
		next := s.correction(v)
		if next == nil {
			s.setSeen(v)
			return v, nil
		}
		if err := s.replace(ctx, v, next); err != nil && err != errConflict { //nolint:errorlint // never wrapped
			return nil, err
		}
	}
	return nil, fmt.Errorf("read the cluster: %w: it keeps changing", blob.ErrUnavailable)
}

// correction returns what must be written before the content may be used, or nil. There are two cases:
//
//   - The content does not continue what was seen before, because the bucket was restored or emptied. From now on
//     it is another history with another name, so that all nodes learn of it. A name that this process has left for
//     another one comes back only by a restoration, too.
//   - A write of this process that was based on the content is still on its way. A content in between makes that
//     write fail.
func (s *Store) correction(v *view) *cluster {
	old := s.seen.Load()
	if old != nil && (s.left[v.StoreID] || !v.continues(old.cluster)) {
		next, name := v.clone(), newHistory(0).StoreID
		next.advance()
		next.N, next.EarlierNonces, next.StoreID = max(v.N, old.N)+1, nil, name
		return next
	}
	if s.pendingWrite != nil && s.pendingWrite.StoreID == v.StoreID && s.pendingWrite.N == v.N+1 {
		next := v.clone()
		next.advance()
		return next
	}
	s.pendingWrite = nil
	return nil
}

// fetch reads the object, or creates the first one.
func (s *Store) fetch(ctx context.Context) (v *view, err error) {
	old := s.seen.Load()
	known := blob.Version("")
	if old != nil {
		known = old.version
	}
	err = s.retry(ctx, func() error {
		o, err := s.readNewer(ctx, clusterKey, known)
		switch {
		case errors.Is(err, blob.ErrNotFound):
			v, err = s.begin(ctx, old)
			return err
		case err != nil:
			return err
		case o == nil:
			v = old
			return nil
		}
		v, err = decode(o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the cluster: %w", err)
	}
	return v, nil
}

// decode makes a view of an object.
func decode(o *blob.Object) (*view, error) {
	v := &view{&cluster{}, o.Version}
	if err := open(kindCluster, o.Data, v.cluster); err != nil {
		return nil, err
	}
	if err := corrupt(kindCluster, v.valid()); err != nil {
		return nil, err
	}
	if v.LastMemberEvent == 0 {
		v.LastMemberEvent = v.Head // written before LastMemberEvent existed: readers must look until it is set
	}
	return v, nil
}

// begin creates the first content, or the first one after the object was lost.
func (s *Store) begin(ctx context.Context, old *view) (*view, error) {
	first := newHistory(0)
	switch {
	case old != nil:
		first = newHistory(old.N)
		first.KnownID = s.identity(old.cluster)
	case s.cfg.MustExist:
		return nil, fmt.Errorf("the bucket holds no cluster: %w", blob.ErrNotFound)
	}
	data, err := seal(kindCluster, first)
	if err != nil {
		return nil, err
	}
	version, err := s.bucket.Create(ctx, clusterKey, data)
	if errors.Is(err, blob.ErrExists) {
		return nil, fmt.Errorf("%w: %w", blob.ErrUnavailable, err) // another process was first: read it
	}
	if err != nil {
		return nil, err
	}
	return &view{first, version}, nil
}

// setSeen records the newest content. The caller holds clusterMu.
func (s *Store) setSeen(v *view) {
	old := s.seen.Swap(v)
	if old != nil && old.StoreID != v.StoreID {
		s.left[old.StoreID] = true
	}
	if old == nil || old.cluster != v.cluster {
		s.pulses.dropDeparted(v.cluster)
	}
}

// replace writes next if v is still the content. It returns errConflict if another process was first. Any other
// error means that the outcome is unknown or that nothing could be done.
//
// If the answer leaves the outcome open, replace reads the object. The nonce of the content n+1 shows whether this
// write was it. If the content is still n, replace sends the same bytes again, which is harmless. If ctx ends
// before the outcome is known, the write is remembered in Store.pendingWrite.
func (s *Store) replace(ctx context.Context, v *view, next *cluster) error {
	if next.N == v.N {
		next.advance()
	}
	data, err := seal(kindCluster, next)
	if err != nil {
		return err
	}
	if limit := bound(s.cfg.MaxBytes, next.adds(v.cluster)); len(data) > limit {
		return fmt.Errorf("%w: the cluster would have %d bytes, the limit is %d: use a database for a cluster of this size",
			blob.ErrTooLarge, len(data), limit)
	}
	w := &write{next: next, base: v, data: data}
	if err = s.retry(ctx, func() error { return s.send(ctx, w) }); err == nil {
		s.pendingWrite = nil
	} else if w.unknownOutcome {
		s.pendingWrite = next
	}
	return err
}

// write is a replacement of the cluster object in flight.
type write struct {
	next           *cluster
	base           *view
	data           []byte
	unknownOutcome bool // it may have happened, or may still happen
}

// send sends a write and finds out its result.
func (s *Store) send(ctx context.Context, w *write) error {
	version, err := s.bucket.Replace(ctx, clusterKey, w.data, w.base.version)
	switch {
	case err == nil:
		w.unknownOutcome = false
		s.setSeen(&view{w.next, version})
		return nil
	case errors.Is(err, blob.ErrUnknownOutcome) || !blob.NotApplied(err):
		w.unknownOutcome = true
	case !isConflict(err):
		return err
	case !w.unknownOutcome:
		return errConflict
	}
	o, reread := s.bucket.Read(ctx, clusterKey)
	if reread != nil {
		return fmt.Errorf("%w (%w)", err, reread)
	}
	now, reread := decode(o)
	if reread != nil {
		return fmt.Errorf("%w (%w)", err, reread)
	}
	return s.resolveWrite(w, now, err)
}

// resolveWrite determines the result of a write from the present content.
func (s *Store) resolveWrite(w *write, now *view, err error) error {
	nonce, known := now.nonceOf(w.next.N)
	switch {
	case now.StoreID == w.base.StoreID && now.N == w.base.N && now.Nonce == w.base.Nonce:
		return fmt.Errorf("%w: %w", blob.ErrUnknownOutcome, err) // not yet: send the same bytes again
	case now.N < w.next.N || now.StoreID != w.next.StoreID || !known:
		// Another history has replaced this one, or more than keepPast contents have followed.
		return fmt.Errorf("write the cluster: its outcome can no longer be determined: %s", err.Error())
	case nonce == w.next.Nonce:
		w.unknownOutcome = false
		if now.N == w.next.N {
			s.setSeen(&view{w.next, now.version})
		} else {
			s.setSeen(now)
		}
		return nil
	}
	w.unknownOutcome = false
	return errConflict
}
