package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/emitd/emitd/queue/internal/journal/owner"
)

// appended is a record that is not acknowledged, and its time.
type appended struct {
	op
	at int64
}

// broker is one process that wants to own the journal. It drives a machine without goroutines.
type broker struct {
	w           *world
	m           *owner.Machine
	name        string
	generation  int64
	window      int
	since       time.Duration
	pausedUntil time.Duration // paused

	owns, ended, dead bool
	state             state
	acked             int    // records of its own
	durable           uint64 // slot
	unacked           []appended
	writing           bool // a checkpoint
}

// start begins a takeover.
func (w *world) start(generation int64, name string) *broker {
	b := &broker{w: w, name: name, generation: generation, since: w.now, window: 1 + w.rng.IntN(8)}
	b.m = owner.New(owner.Config{
		StoreID: "store", Generation: generation, Owner: name, Window: b.window, MinGap: 2 * time.Millisecond, MaxGap: 5 * time.Millisecond,
		MarkAfter: time.Second, MarkEvery: 3 * time.Second, Name: prefix, WritesPerSecond: float64(w.rng.IntN(3) * 10),
		MaxSegment: 200, MaxCall: 1 << 20, MaxPending: 1 << 20, PartSize: 2000,
		Readahead: 8 + w.rng.IntN(120), ReadBytes: 1 << 20, Rand: w.rng.Uint64,
	})
	w.brokers = append(w.brokers, b)
	b.perform(b.m.Start(w.now))
	return b
}

// at runs f after d, or when the process continues after a pause; never if it has crashed.
func (b *broker) at(d time.Duration, f func()) {
	b.w.after(d, func() {
		switch {
		case b.dead || b.ended:
		case b.pausedUntil > b.w.now:
			b.at(b.pausedUntil-b.w.now, f)
		default:
			f()
		}
	})
}

func (b *broker) crash() { b.dead, b.ended = true, true }

func (b *broker) close() { b.perform(b.m.Close(b.w.now)) }

func (b *broker) perform(effects []owner.Effect) {
	for _, e := range effects {
		if b.dead || b.w.stop != nil {
			return
		}
		switch e := e.(type) {
		case *owner.Call:
			b.send(e)
		case owner.Reset:
			b.state = state{}
		case owner.Restore:
			b.restore(e)
		case owner.Replay:
			for _, batch := range e.Segment.Batches {
				for r := range batch.Records() {
					b.state.add(op{id: binary.LittleEndian.Uint64(r), slot: e.Segment.Header.Slot})
				}
			}
		case owner.Owned:
			b.owned()
		case owner.Ack:
			b.ack(e.Slot)
		case owner.SetTimer:
			b.at(max(e.At-b.w.now, 0), func() { b.perform(b.m.Tick(b.w.now)) })
		case owner.Progress:
			b.progress(e)
		case owner.End:
			b.end(e.Err)
		}
	}
}

// answerTimeout is how long a process waits for an answer.
const answerTimeout = time.Second

// send simulates a call: it waits, travels, arrives and is answered. A request that has left the
// process arrives even if the process crashes or has stopped waiting.
func (b *broker) send(c *owner.Call) {
	w := b.w
	leave := func() {
		there, back := w.latency(), w.latency()
		if there+back > answerTimeout {
			w.after(there, func() { w.executor.Execute(context.Background(), c) })
			b.at(answerTimeout, func() { b.perform(b.m.Result(w.now, gaveUp(c))) })
			return
		}
		w.after(there, func() {
			r := w.executor.Execute(context.Background(), c)
			b.at(back, func() { b.perform(b.m.Result(w.now, r)) })
		})
	}
	if c.After > 0 {
		b.at(c.After, leave)
	} else {
		leave()
	}
}

var errNoAnswer = errors.New("no answer")

func gaveUp(c *owner.Call) owner.Result {
	if c.Op.Writes() {
		return owner.Result{ID: c.ID, Answer: owner.Unknown, Err: errNoAnswer}
	}
	return owner.Result{ID: c.ID, Answer: owner.Failed, Err: errNoAnswer}
}

func (b *broker) restore(e owner.Restore) {
	for _, batch := range e.Part.Batches {
		for chunk := range batch.Records() {
			b.state.restore(chunk)
		}
	}
}

func (b *broker) owned() {
	b.owns = true
	b.durable = b.m.View().Durable
	b.w.check.owned(b.w, b)
	b.work()
	b.at(b.w.between(0, time.Second), b.checkpoint)
}

// work appends records in bursts, as long as the process owns the journal.
func (b *broker) work() {
	w := b.w
	if w.noAppends {
		return
	}
	records := make([][]byte, 1+w.rng.IntN(4))
	ids := make([]uint64, len(records))
	for i := range records {
		w.nextOp++
		ids[i] = w.nextOp
		records[i] = binary.LittleEndian.AppendUint64(make([]byte, 0, 40), ids[i])
		records[i] = append(records[i], make([]byte, w.rng.IntN(32))...)
	}
	// The clocks of processes differ; the journal makes one monotone time of them.
	at := max(int64(w.now/time.Microsecond)+int64(w.rng.IntN(5_000_000)), b.m.View().Time)
	slot, effects, err := b.m.Append(w.now, at, len(records), records)
	if err != nil {
		return // it is closing
	}
	for _, id := range ids {
		b.state.add(op{id, slot})
		b.unacked = append(b.unacked, appended{op{id, slot}, at})
	}
	b.perform(effects)
	pause := w.between(0, 80*time.Millisecond)
	if w.chance(50) {
		pause = w.between(0, 500*time.Millisecond)
	}
	b.at(pause, b.work)
}

func (b *broker) ack(slot uint64) {
	n := 0
	for n < len(b.unacked) && b.unacked[n].slot <= slot {
		n++
	}
	b.w.check.acked(b.w, b, slot, b.unacked[:n])
	b.unacked = b.unacked[n:]
	b.acked += n
	b.durable = slot
	b.w.totals.Acked += n
}

// checkpoint writes the current state at once; its parts are stored while the work continues.
func (b *broker) checkpoint() {
	w := b.w
	b.at(w.between(50*time.Millisecond, time.Second), b.checkpoint)
	if b.writing || w.noCheckpoints {
		return
	}
	upTo, effects, err := b.m.Checkpoint(w.now)
	if err != nil {
		return
	}
	b.writing = true
	b.perform(effects)
	parts := b.state.parts()
	if err := b.m.DropRuns(parts.drop); err != nil {
		w.violate("S5", "checkpoint up to %d: %v", upTo, err)
	}
	for _, run := range parts.made {
		effects, _ := b.m.WriteRun(run)
		b.perform(effects)
	}
	for _, chunk := range parts.chunks {
		effects, _ := b.m.WriteChunk(chunk)
		b.perform(effects)
	}
	w.totals.Runs += len(parts.made)
	if w.chance(50) {
		b.m.Abort()
		b.writing = false
		return
	}
	var kept []uint64
	for _, o := range b.state.referencedOps() {
		kept = append(kept, o.slot)
	}
	effects, err = b.m.Commit(kept)
	if err != nil {
		w.violate("S5", "checkpoint up to %d: %v", upTo, err)
	}
	b.state.runs = parts.runs
	b.perform(effects)
}

func (b *broker) progress(p owner.Progress) {
	switch {
	case p.Checkpointed:
		b.writing = false
		b.w.totals.Checkpoints++
	case p.Collected:
		b.w.totals.Deleted += p.Deleted
		b.w.check.payloads(b.w)
		b.w.check.objects(b.w)
	}
}

func (b *broker) end(err error) {
	b.ended = true
	b.w.totals.Recognised += b.m.View().Stats.Recognised
	switch {
	case err == nil:
		b.w.check.closed = max(b.w.check.closed, b.m.View().Epoch)
	case errors.Is(err, owner.ErrClosed):
	case errors.Is(err, owner.ErrMissing) && b.w.deletedKey != "":
	case errors.Is(err, owner.ErrFenced):
		b.w.totals.Fenced++
		if b.w.check.head(b.w).Epoch <= b.m.View().Epoch {
			b.w.violate("S5", "epoch %d is the latest and was fenced: %v", b.m.View().Epoch, err)
		}
	case errors.Is(err, owner.ErrGeneration):
		b.w.totals.Refused++
		b.refused(err)
	default:
		b.w.violate("S5", "%s of epoch %d: %v", b.name, b.m.View().Epoch, err)
	}
}

// refused reports the generation floor to the leader, as a broker does.
func (b *broker) refused(err error) {
	g, ok := errors.AsType[*owner.GenerationError](err)
	if !ok || g.Floor <= b.generation || b.w.check.head(b.w).Generation < g.Held {
		b.w.violate("S5", "generation %d was refused: %v", b.generation, err)
		return
	}
	b.w.generation = max(b.w.generation, g.Floor)
}
