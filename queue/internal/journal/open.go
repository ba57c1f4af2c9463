package journal

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
	"github.com/emitd/emitd/storage/blob"
)

// The defaults of Config.
const (
	defaultWindow      = 32
	minGap             = 2 * time.Millisecond
	maxGap             = 5 * time.Millisecond
	defaultMaxPending  = 64 << 20
	defaultPartSize    = 8 << 20
	defaultReadahead   = 256
	defaultCallTimeout = 15 * time.Second
	defaultOpenTimeout = time.Minute
	defaultMarkAfter   = time.Second
	defaultMarkEvery   = time.Minute
	readBytes          = 64 << 20

	minWrites = 0.1 // a record waits at most 10 s for its write
)

// withDefaults sets zero fields to their defaults, and returns an error for invalid ones.
func (c Config) withDefaults() (Config, error) {
	if c.Codec == nil {
		c.Codec = NewCodec()
	}
	setDefault(&c.Window, defaultWindow)
	setDefault(&c.MaxPending, defaultMaxPending)
	setDefault(&c.PartSize, defaultPartSize)
	setDefault(&c.Readahead, defaultReadahead)
	setDefault(&c.CallTimeout, defaultCallTimeout)
	setDefault(&c.OpenTimeout, defaultOpenTimeout)
	setDefault(&c.MarkAfter, defaultMarkAfter)
	setDefault(&c.MarkEvery, defaultMarkEvery)
	switch {
	case c.Bucket == nil:
		return c, errors.New("config: Bucket is nil")
	case c.StoreID == "" || c.Owner == "":
		return c, fmt.Errorf("config: StoreID %q and Owner %q must be given", c.StoreID, c.Owner)
	case c.Generation < 1:
		return c, fmt.Errorf("config: Generation is %d, at least 1 is needed", c.Generation)
	case c.Window < 0 || c.Window > owner.MaxWindow:
		return c, fmt.Errorf("config: Window is %d, at most %d are allowed", c.Window, owner.MaxWindow)
	case c.PartSize > format.MaxRaw/2:
		return c, fmt.Errorf("config: PartSize is %d, at most %d are allowed", c.PartSize, format.MaxRaw/2)
	case c.MinGap < 0 || c.MaxPending < 0 || c.PartSize < 0 || c.Readahead < 0 || c.CallTimeout < 0 || c.OpenTimeout < 0 || c.MarkAfter < 0 || c.MarkEvery < 0:
		return c, errors.New("config: a negative number")
	case c.WritesPerSecond != 0 && !(c.WritesPerSecond >= minWrites):
		return c, fmt.Errorf("config: WritesPerSecond is %v, want 0 or at least %v", c.WritesPerSecond, minWrites)
	}
	longest := format.PartKey(format.Checkpoint{}, 0)
	if err := blob.CheckKey(c.Prefix + "/" + longest); err != nil {
		return c, fmt.Errorf("config: Prefix %q: %w", c.Prefix, err)
	}
	return c, nil
}

func setDefault[T int | time.Duration](v *T, standard T) {
	if *v == 0 {
		*v = standard
	}
}

func (c Config) ownerConfig() owner.Config {
	least, most := c.MinGap, c.MinGap
	if c.MinGap == 0 {
		least, most = minGap, maxGap
	}
	return owner.Config{
		StoreID: c.StoreID, Generation: c.Generation, Owner: c.Owner, Adopt: c.Adopt, Name: c.Name, Salvage: c.Salvage, MarkAfter: c.MarkAfter, MarkEvery: c.MarkEvery,
		Window: c.Window, MinGap: least, MaxGap: most, WritesPerSecond: c.WritesPerSecond, MaxSegment: maxSegment, MaxCall: MaxCall, MaxPending: c.MaxPending,
		PartSize: c.PartSize, Readahead: c.Readahead, ReadBytes: readBytes, Rand: random,
	}
}

// random returns 64 random bits from the operating system. A seeded generator would not do: a copy
// of this process would draw the same numbers.
func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// Open takes over the journal and rebuilds the state; see the package comment. The journal
// is owned until the log is closed, ctx ends, or another process takes it over. If ctx carries a
// deadline of the assignment (daemon.Validity), no request outlasts it. Failing requests are repeated
// until nothing was read for OpenTimeout; a denied request is not repeated.
//
// Errors to act on: [GenerationError] (also if another process took over meanwhile), [ErrOtherStore],
// [ErrFenced] (another run of this same process took over meanwhile), [ErrCorrupt], [ErrNewer],
// [ErrMissing], [ErrRepairing], and those of package blob, such as blob.ErrDenied.
func Open(ctx context.Context, cfg Config, state StateBuilder) (*Log, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	l := &Log{
		executor: Executor{Bucket: cfg.Bucket, Prefix: cfg.Prefix, Codec: cfg.Codec}, callTimeout: cfg.CallTimeout, hooks: cfg.Hooks, begun: time.Now(), machine: owner.New(cfg.ownerConfig()),
		opening: &opening{answers: make(chan *answer), over: make(chan struct{})}, acks: make(chan uint64, 1), done: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.opening.ctx, l.opening.cancel = context.WithCancel(l.ctx)
	if err := l.takeOver(state, cfg.OpenTimeout); err != nil {
		l.cancel()
		l.opening.calls.Wait()
		return nil, fmt.Errorf("open %w", l.wrap(err))
	}
	l.start(ctx)
	return l, nil
}

// takeOver drives the machine until it owns the journal. It gives up when nothing was read for as long as timeout.
func (l *Log) takeOver(state StateBuilder, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	var last error // error of the latest request that failed
	effects := l.machine.Start(l.now())
	for {
		progressed, err := l.rebuild(state, effects)
		if err != nil {
			return err
		}
		if progressed {
			timer.Reset(timeout)
		}
		if l.owned {
			return nil
		}
		select {
		case a := <-l.opening.answers:
			if a.failed() {
				last = a.result.Err
				l.reportRetry(a)
			}
			if fatal(a.result.Err, true) {
				return a.result.Err
			}
			effects = l.machine.Result(l.now(), a.result)
		case <-l.ctx.Done():
			return errors.Join(l.ctx.Err(), last)
		case <-timer.C:
			return errors.Join(fmt.Errorf("no progress for %s", timeout), last)
		}
	}
}

// rebuild carries out the effects of a takeover, and reports whether one of them added to the
// state.
func (l *Log) rebuild(state StateBuilder, effects []owner.Effect) (progressed bool, err error) {
	for _, e := range effects {
		switch e := e.(type) {
		case owner.Reset:
			l.lost = nil
			state.Reset()
		case owner.Restore:
			progressed, err = true, restore(state, e.Part)
		case owner.Replay:
			progressed, err = true, replay(state, e.Segment)
		case owner.Skipped:
			l.lost = append(l.lost, Lost{Slot: e.Slot, End: e.Next, Err: e.Err})
		case owner.End:
			err = e.Err
		default:
			l.carryOut([]owner.Effect{e})
		}
		if err != nil {
			return progressed, err
		}
	}
	return progressed, nil
}

func restore(state StateBuilder, part *format.Segment) error {
	for _, b := range part.Batches {
		for chunk := range b.Records() {
			if err := state.Restore(chunk); err != nil {
				return fmt.Errorf("restore checkpoint %d: %w", part.Header.Slot, err)
			}
		}
	}
	return nil
}

func replay(state StateBuilder, s *format.Segment) error {
	for _, b := range s.Batches {
		if err := state.Replay(s.Header.Slot, time.UnixMicro(b.At), b.Records()); err != nil {
			return fmt.Errorf("replay slot %d: %w", s.Header.Slot, err)
		}
	}
	return nil
}
