package ledger

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
)

// submitted enqueues a job with a payload of this size in a slot.
func submitted(t testing.TB, l *Ledger, slot uint64, id string, size int) uint64 {
	t.Helper()
	number := l.NextNumber()
	r := Record{Kind: Enqueue, Numbers: []uint64{number}, ID: id, Payload: payloadOfSize(id, size), Slot: slot}
	if err := l.Apply(&r, 0); err != nil {
		t.Fatal(err)
	}
	return number
}

func payloadOfSize(id string, size int) []byte {
	payload := make([]byte, size)
	copy(payload, id)
	return payload
}

func finished(t testing.TB, l *Ledger, number uint64) {
	t.Helper()
	for _, r := range []Record{
		{Kind: Claim, Numbers: []uint64{number}, Deliveries: []uint64{1}, Epoch: 1, Until: 1, Worker: "w"},
		{Kind: Complete, Numbers: []uint64{number}},
	} {
		if err := l.Apply(&r, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPayloadsInSegments: a job refers to the segment with its payload, through checkpoints and moves. A
// small payload stays in memory.
func TestPayloadsInSegments(t *testing.T) {
	t.Parallel()
	l := New(Config{})
	l.KeepRecent(0)
	small := submitted(t, l, 7, "small", SmallPayload)
	large := submitted(t, l, 7, "large", SmallPayload+1)
	other := submitted(t, l, 8, "other", 1000)
	check := func(l *Ledger, want map[uint64][]uint64) {
		t.Helper()
		if got := l.JobsBySlot(); !reflect.DeepEqual(got, want) {
			t.Errorf("jobs by slot: %v, want %v", got, want)
		}
		if j, _ := l.Job(small); j.Payload != string(payloadOfSize("small", SmallPayload)) || j.Slot != 0 || j.Size != SmallPayload {
			t.Errorf("%+v", j)
		}
		if j, ok := l.Job(other); ok && (j.Payload != "" || j.Size != 1000 || l.Size(other) != 1000) {
			t.Errorf("%+v", j)
		}
		if s := l.Stats(); s.PayloadBytes != SmallPayload {
			t.Errorf("%+v", s)
		}
	}
	check(l, map[uint64][]uint64{7: {large}, 8: {other}})
	move := Record{Kind: MovePayload, Numbers: []uint64{large}, ID: "large", Payload: payloadOfSize("large", SmallPayload+1), Slot: 9}
	c := l.BeginCheckpoint()
	if err := l.Apply(&move, 0); err != nil {
		t.Fatal(err)
	}
	finished(t, l, other)
	var saved []byte
	for more := true; more; {
		saved, _, more = c.Write(saved, 1<<16)
	}
	// The checkpoint is that of the moment when it began, and so are its slots.
	if slots := c.Slots(); !slices.Equal(slots, []uint64{7, 8}) {
		t.Errorf("slots of the checkpoint: %v", slots)
	}
	check(restoreAll(t, nil, saved), map[uint64][]uint64{7: {large}, 8: {other}})
	check(l, map[uint64][]uint64{9: {large}})
	_, saved, c = cutAll(l)
	if slots := c.Slots(); !slices.Equal(slots, []uint64{9}) {
		t.Errorf("slots of the checkpoint: %v", slots)
	}
	check(restoreAll(t, nil, saved), map[uint64][]uint64{9: {large}})

	finished(t, l, large)
	move.Slot = 10
	if err := l.Apply(&move, 0); err != nil { // the job has ended
		t.Error(err)
	}
	check(l, map[uint64][]uint64{})
	for _, id := range []string{"small", "large"} { // another payload, another job
		if move.Numbers[0], move.ID = small, id; !errors.Is(l.Apply(&move, 0), ErrVoid) {
			t.Error("applied to " + id)
		}
	}
}

// TestPayloadOf: a payload is found in the records that have one.
func TestPayloadOf(t *testing.T) {
	t.Parallel()
	large := payloadOfSize("x", 500)
	for kind, r := range map[string]Record{
		"enqueue": {Kind: Enqueue, Numbers: []uint64{3}, ID: "x", Payload: large},
		"move":    {Kind: MovePayload, Numbers: []uint64{3}, ID: "x", Payload: large},
	} {
		if n, id, p, ok := PayloadOf(r.Append(nil)); !ok || n != 3 || id != Pack("x") || !slices.Equal(p, large) {
			t.Errorf("%s: %d, %d bytes, %t", kind, n, len(p), ok)
		}
	}
	for kind, r := range map[string]Record{
		"small":    {Kind: Enqueue, Numbers: []uint64{3}, ID: "x", Payload: large[:SmallPayload]},
		"complete": {Kind: Complete, Numbers: []uint64{3}, Result: large},
	} {
		if _, _, _, ok := PayloadOf(r.Append(nil)); ok {
			t.Errorf("%s has a payload", kind)
		}
	}
	if _, _, _, ok := PayloadOf([]byte("no record")); ok {
		t.Error("no record has a payload")
	}
}

// TestRecentPayloads: the payloads of the newest jobs are in memory, as many as the limit allows.
func TestRecentPayloads(t *testing.T) {
	t.Parallel()
	const size, room = 1000, 50
	l := New(Config{})
	l.KeepRecent(size * room)
	recent := func(number uint64) bool {
		j, _ := l.Job(number)
		if j.Payload != "" && j.Payload != string(payloadOfSize(j.ID, size)) {
			t.Errorf("job %s has another payload", j.ID)
		}
		return j.Payload != ""
	}
	old := submitted(t, l, 1, "old", size)
	submitted(t, l, 1, "larger than all", size*room+1)
	var numbers []uint64
	for i := range 10 * room {
		numbers = append(numbers, submitted(t, l, uint64(2+i), fmt.Sprint("job-", i), size))
		if i%2 == 0 { // ended jobs take no room
			finished(t, l, numbers[i])
		}
		if got := l.Stats().PayloadBytes; got > size*room {
			t.Fatalf("%d bytes after %d jobs", got, i)
		}
	}
	if recent(old) || !recent(numbers[len(numbers)-1]) || !recent(numbers[len(numbers)-2*room+1]) || recent(numbers[len(numbers)-2*room-1]) {
		t.Error("not the newest jobs")
	}
	// The list of those that ended is bounded although the oldest one waits.
	for i := range 20_000 {
		finished(t, l, submitted(t, l, uint64(10_000+i), fmt.Sprint("busy-", i), size))
	}
	if n := len(l.recent.numbers); n > 2*shortRecent+room {
		t.Errorf("the list has %d numbers", n)
	}
	l.KeepRecent(0)
	if s := l.Stats(); s.PayloadBytes != 0 || l.recent.jobs != 0 {
		t.Errorf("%+v", s)
	}
}

// TestSparse: what the rule of cleaning chooses.
func TestSparse(t *testing.T) {
	t.Parallel()
	l := New(Config{})
	fill := func(slot uint64, jobs, live, size int) {
		for i := range jobs {
			if n := submitted(t, l, slot, fmt.Sprint(slot, "-", i), size); i >= live {
				finished(t, l, n)
			}
		}
	}
	fill(1, 100, 25, 10_000) // a quarter is live
	fill(2, 100, 24, 10_000)
	fill(3, 100, 100, 10_000)
	fill(4, 1, 1, 1000) // small
	fill(5, 100, 1, 1000)
	fill(6, 100, 0, 1000) // nobody needs it
	fill(900, 100, 1, 1000)
	slots := func(below uint64, limit int64) (all []uint64) {
		for _, s := range l.Sparse(below, limit) {
			all = append(all, s.Slot)
		}
		return all
	}
	if got := slots(900, 1<<30); !slices.Equal(got, []uint64{2, 5}) {
		t.Errorf("sparse: %v", got)
	}
	if got := slots(5, 1<<30); !slices.Equal(got, []uint64{2}) {
		t.Errorf("sparse below a slot: %v", got)
	}
	if got := slots(900, 1); len(got) != 1 {
		t.Errorf("with a limit: %v", got)
	}
	for i := range manySmall - 1 {
		fill(uint64(100+i), 1, 1, 1000)
	}
	if got := slots(900, 1<<30); len(got) != 2+manySmall || got[0] != 2 || got[1] != 4 {
		t.Errorf("with many small ones: %v", got)
	}
}

// TestCheckpointsOfSegments: a checkpoint whose jobs and segments do not fit together is corrupt.
func TestCheckpointsOfSegments(t *testing.T) {
	t.Parallel()
	head := put(nil, &Record{Kind: header, Numbers: []uint64{5, 1, 0}, save: &checkpointFields{}})
	segs := func(pairs ...uint64) []byte {
		return put(nil, &Record{Kind: savedSegments, Numbers: pairs, save: &checkpointFields{}})
	}
	one := func(slot uint64) []byte {
		return put(nil, &Record{Kind: savedJob, Numbers: []uint64{3}, ID: "x", Slot: slot, Size: 200, save: &checkpointFields{state: Waiting}})
	}
	end := put(nil, &Record{Kind: trailer, save: &checkpointFields{counts: [6]uint64{1}}})
	for name, c := range map[string]struct {
		chunks []byte
		good   bool
	}{
		"whole":                  {slices.Concat(head, segs(7, 200), one(7), end), true},
		"another segment":        {slices.Concat(head, segs(7, 200), one(8), end), false},
		"a segment without jobs": {slices.Concat(head, segs(7, 200, 8, 1), one(7), end), false},
		"a segment twice":        {slices.Concat(head, segs(7, 200, 7, 1), one(7), end), false},
		"no slot":                {slices.Concat(head, segs(0, 200, 7, 200), one(7), end), false},
		"half a pair":            {slices.Concat(head, segs(7), one(7), end), false},
	} {
		r := NewCheckpointReader()
		err := r.Add(c.chunks)
		if (err == nil) != c.good || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
