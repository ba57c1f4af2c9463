package ledger

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// story is a ledger to which a test applies records.
type story struct {
	*Ledger
	t   *testing.T
	now int64
}

func report(t *testing.T) *story {
	return &story{Ledger: New(Config{}), t: t, now: 1_000_000}
}

func (s *story) enqueue(id string, change ...func(*Record)) uint64 {
	s.t.Helper()
	r := &Record{Kind: Enqueue, At: s.now, Numbers: []uint64{s.NextNumber()}, ID: id, Policy: DefaultPolicy, Payload: []byte("payload of " + id)}
	for _, f := range change {
		f(r)
	}
	s.do(r)
	return r.Numbers[0]
}

func (s *story) do(r *Record) {
	s.t.Helper()
	r.At = s.now
	if err := s.Apply(r, s.now); err != nil {
		s.t.Fatal(err)
	}
}

// claim claims the best job and returns its number.
func (s *story) claim() uint64 {
	s.t.Helper()
	number, ok := s.Best(nil)
	if !ok {
		s.t.Fatal("nothing to claim")
	}
	j, _ := s.Job(number)
	s.do(&Record{Kind: Claim, Numbers: []uint64{number}, Deliveries: []uint64{uint64(j.Deliveries) + 1}, Worker: "w", Until: s.now + 30_000, Visibility: 30_000})
	return number
}

func (s *story) delivery(kind Kind, number uint64) {
	s.t.Helper()
	j, _ := s.Job(number)
	s.do(&Record{Kind: kind, Numbers: []uint64{number}, Deliveries: []uint64{uint64(j.Deliveries)}})
}

func (s *story) job(number uint64) Job {
	s.t.Helper()
	j, ok := s.Job(number)
	if !ok {
		s.t.Fatalf("job %d is gone", number)
	}
	return j
}

// TestAClaimIsNoAttempt: an attempt is counted once, at the first proof that the delivery began.
func TestAClaimIsNoAttempt(t *testing.T) {
	t.Parallel()
	s := report(t)
	n := s.enqueue("a")
	for delivery := 1; delivery <= 4; delivery++ {
		s.claim()
		if j := s.job(n); j.Attempts != 0 || j.Deliveries != delivery {
			t.Fatalf("after claim %d: %d attempts, %d deliveries", delivery, j.Attempts, j.Deliveries)
		}
		s.do(&Record{Kind: Release, Numbers: []uint64{n}})
	}
	s.claim()
	s.delivery(AttemptStarted, n)
	s.delivery(AttemptStarted, n)
	if j := s.job(n); j.Attempts != 1 || !j.Begun {
		t.Fatalf("after two heartbeats: %d attempts", j.Attempts)
	}
	s.do(&Record{Kind: Fail, Numbers: []uint64{n}, Cause: "x"})
	if j := s.job(n); j.Attempts != 1 || j.Cause != "x" || j.State != Waiting {
		t.Fatalf("after the failure: %+v", j)
	}
	s.claim()
	s.delivery(Expire, n)
	if j := s.job(n); j.Attempts != 2 || j.Begun || j.Exhausted(false) || !j.Exhausted(true) {
		t.Fatalf("after the expiry: %+v", j)
	}
}

// TestDeliveriesEnd: a job that is claimed again and again without a proof of beginning is dead in
// the end.
func TestDeliveriesEnd(t *testing.T) {
	t.Parallel()
	s := report(t)
	n := s.enqueue("a", func(r *Record) { r.Policy.Max = 2 })
	for range 5 {
		s.claim()
		if j := s.job(n); j.Exhausted(false) {
			t.Fatalf("exhausted after %d deliveries", j.Deliveries)
		}
		s.do(&Record{Kind: Release, Numbers: []uint64{n}})
	}
	s.claim()
	j := s.job(n)
	if !j.Exhausted(false) {
		t.Fatalf("not exhausted after %d deliveries", j.Deliveries)
	}
	s.do(&Record{Kind: DeadLetter, Numbers: []uint64{n}, Cause: "handed out 6 times"})
	if st := s.Stats(); st.Dead != 1 || st.Totals.Died != 1 {
		t.Fatalf("%+v", st)
	}
	s.do(&Record{Kind: Redrive, Numbers: []uint64{n}})
	if j = s.job(n); j.State != Waiting || j.Attempts != 0 || j.Exhausted(false) || j.Deliveries != 6 {
		t.Fatalf("redriven: %+v", j)
	}
}

// TestOrder: the highest priority first, then the oldest; a retried job keeps its place unless its
// policy moves it to the end.
func TestOrder(t *testing.T) {
	t.Parallel()
	s := report(t)
	a := s.enqueue("a")
	b := s.enqueue("b", func(r *Record) { r.Policy.Back = true })
	c := s.enqueue("c")
	top := s.enqueue("top", func(r *Record) { r.Priority = 5 })
	for _, want := range []uint64{top, a, b} {
		if got := s.claim(); got != want {
			t.Fatalf("claimed %d, want %d", got, want)
		}
	}
	s.do(&Record{Kind: Fail, Numbers: []uint64{a}})
	s.do(&Record{Kind: Fail, Numbers: []uint64{b}, Places: []uint64{s.NextNumber()}})
	for _, want := range []uint64{a, c, b} {
		if got := s.claim(); got != want {
			t.Fatalf("claimed %d, want %d", got, want)
		}
	}
}

// TestDedupWindowEdges: an ID is remembered for exactly the window, and the limit of IDs is exact.
func TestDedupWindowEdges(t *testing.T) {
	t.Parallel()
	s := report(t)
	s.do(&Record{Kind: Configure, Config: Config{DedupWindow: 1000, DedupIDs: 3}})
	for _, id := range []string{"a", "b", "c", "d"} {
		s.enqueue(id)
		s.do(&Record{Kind: Complete, Numbers: []uint64{s.claim()}, Result: []byte(id)})
	}
	for id, want := range map[string]bool{"a": false, "b": true, "c": true, "d": true} {
		if e, ok := s.Ended(id); ok != want || ok && string(e.Result) != id {
			t.Errorf("of %s is remembered %+v, %t", id, e, ok)
		}
	}
	s.Advance(s.now + 999)
	if _, ok := s.Ended("b"); !ok {
		t.Error("forgotten before the window's end")
	}
	again := &Record{Kind: Enqueue, At: s.now, Numbers: []uint64{s.NextNumber()}, ID: "b", Policy: DefaultPolicy}
	if err := s.Apply(again, s.now+999); !errors.Is(err, ErrVoid) {
		t.Errorf("enqueued within the window: %v", err)
	}
	if err := s.Apply(again, s.now+1000); err != nil {
		t.Errorf("enqueued after the window: %v", err)
	}
	if st := s.Stats(); st.DedupIDs != 0 || st.DedupBytes > 100_000 {
		t.Errorf("%+v", st)
	}
}

// TestTimeToLive: only waiting jobs expire; a claim stops the clock.
func TestTimeToLive(t *testing.T) {
	t.Parallel()
	s := report(t)
	n := s.enqueue("a", func(r *Record) { r.Expires = s.now + 500 })
	s.claim()
	if late := s.ExpiredTTLs(s.now+10_000, 10); len(late) != 0 {
		t.Fatalf("an active job is late: %v", late)
	}
	s.delivery(Expire, n)
	if late := s.ExpiredTTLs(s.now+499, 10); len(late) != 0 {
		t.Fatalf("late too early: %v", late)
	}
	if late := s.ExpiredTTLs(s.now+500, 10); !slices.Equal(late, []uint64{n}) {
		t.Fatalf("late: %v", late)
	}
	if at, ok := s.NextDeadline(); !ok || at != s.now+500 {
		t.Fatalf("next at %d, %t", at, ok)
	}
	s.do(&Record{Kind: DeadLetter, Numbers: []uint64{n}, Cause: "late", TTLExpired: true})
	if st := s.Stats(); st.Totals.Expired != 1 || st.Totals.Died != 0 || st.Dead != 1 {
		t.Fatalf("%+v", st)
	}
	s.do(&Record{Kind: Redrive, Numbers: []uint64{n}})
	if late := s.ExpiredTTLs(s.now+10_000, 10); len(late) != 0 {
		t.Fatalf("redriven and late: %v", late)
	}
}

// TestRepeatedClaimCall: the jobs of a call are found by its request ID as long as that claim
// holds.
func TestRepeatedClaimCall(t *testing.T) {
	t.Parallel()
	s := report(t)
	a, b := s.enqueue("a"), s.enqueue("b")
	s.do(&Record{Kind: Claim, Numbers: []uint64{b, a}, Deliveries: []uint64{1, 1}, Request: "call", Worker: "w", Until: s.now + 9, Visibility: 9})
	if got := s.JobsOfRequest("call"); !slices.Equal(got, []uint64{a, b}) {
		t.Fatalf("%v", got)
	}
	s.do(&Record{Kind: Complete, Numbers: []uint64{a}})
	s.delivery(Expire, b)
	if got := s.JobsOfRequest("call"); len(got) != 0 || len(s.requests) != 0 {
		t.Fatalf("%v, %v", got, s.requests)
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	p := Policy{Max: 9, Factor: 2, Backoff: 1000, MaxBackoff: 5000}
	for attempts, want := range map[int]int64{1: 1000, 2: 2000, 3: 4000, 4: 5000, 60: 5000} {
		if got := p.Wait(attempts, 0.9); got != want {
			t.Errorf("after %d attempts %d, want %d", attempts, got, want)
		}
	}
	p.Jitter = 0.5
	if lo, hi := p.Wait(1, 0), p.Wait(1, 0.999999); lo != 500 || hi < 1490 || hi > 1500 {
		t.Errorf("spread from %d to %d", lo, hi)
	}
}

// TestIDsComeBack: every ID is found by its exact text, and by no other.
func TestIDsComeBack(t *testing.T) {
	t.Parallel()
	s := report(t)
	ids := []string{
		"a", "A", "a\x00", "0123456789abcdef", "0123456789abcdefg", "0190b5a0-0000-7000-8000-0123456789ab", "0190B5A0-0000-7000-8000-0123456789AB",
		"0190b5a0-0000-7000-8000-0123456789a-", "0190b5a0_0000-7000-8000-0123456789ab", string(make([]byte, 64)), string(make([]byte, 33)), string(make([]byte, 32)),
	}
	for _, id := range ids {
		s.enqueue(id)
	}
	for n, id := range ids {
		if j, ok := s.Find(id); !ok || j.ID != id || j.Number != uint64(n+1) {
			t.Errorf("%q is found as %+v, %t", id, j, ok)
		}
	}
}

// TestMemory: the memory of a waiting job, and that it is released.
func TestMemory(t *testing.T) {
	t.Parallel()
	const n = 100_000
	s := report(t)
	for i := range n {
		s.enqueue(fmt.Sprintf("0190b5a0-0000-7000-8000-%012x", i), func(r *Record) { r.Type, r.Payload = kinds[i%3], make([]byte, 100) })
	}
	st := s.Stats()
	if per := float64(st.IndexBytes) / n; per > 100 || st.PayloadBytes != 100*n {
		t.Errorf("%.1f bytes per waiting job, %d of payload", per, st.PayloadBytes)
	}
	for range n {
		s.do(&Record{Kind: Complete, Numbers: []uint64{s.claim()}})
	}
	full := s.Stats()
	if per := float64(full.DedupBytes) / n; full.IndexBytes > 2_000_000 || per > 45 {
		t.Errorf("empty, the index has %d bytes; %.1f bytes per ID that is remembered", full.IndexBytes, per)
	}
	s.Advance(s.now + 10*60_000)
	if st = s.Stats(); st.DedupBytes > 100_000 || st.DedupIDs != 0 {
		t.Errorf("forgotten, the window has %d bytes for %d IDs", st.DedupBytes, st.DedupIDs)
	}
}

// TestManyTypesAndPolicies: more than two bytes can number, and none is kept when its jobs are
// gone.
func TestManyTypesAndPolicies(t *testing.T) {
	t.Parallel()
	s := report(t)
	const n = 70_000
	for i := range n {
		s.enqueue(fmt.Sprint(i), func(r *Record) { r.Type, r.Policy.Backoff = fmt.Sprint("t", i%100), int64(i+1) })
	}
	for _, i := range []uint64{1, 65_535, 65_536, n} {
		if j := s.job(i); j.Policy.Backoff != int64(i) {
			t.Errorf("job %d has the policy %+v", i, j.Policy)
		}
	}
	for i := range uint64(n) {
		s.do(&Record{Kind: Purge, Numbers: []uint64{i + 1}})
	}
	if len(s.policies.of) != 0 || len(s.types.of) != 0 || s.types.size != 0 || s.extraBytes != 0 || s.payloadBytes != 0 {
		t.Errorf("left: %d policies, %d types, %d, %d and %d bytes", len(s.policies.of), len(s.types.of), s.types.size, s.extraBytes, s.payloadBytes)
	}
}

// TestIndexLikeAMap compares table and numbers with maps under growth and shrinking.
func TestIndexLikeAMap(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	keys := make([]ID, 4000)
	for i := range keys {
		keys[i] = Pack(fmt.Sprint("key ", i))
	}
	var x idTable
	x.init(func(ref uint32) [16]byte { return keys[ref].id }, func(ref uint32, p ID) bool { return keys[ref] == p })
	var nums numberTable
	in := map[uint32]bool{}
	for step := range 60_000 {
		ref := uint32(rnd.IntN(len(keys)))
		if (step/15_000)%2 == 1 {
			ref = uint32(rnd.IntN(40)) * 100 // sparse
			for other := range in {
				if other%100 != 0 {
					ref = other
					break
				}
			}
		}
		number := uint64(ref) * 3
		if in[ref] {
			x.remove(keys[ref].id, ref)
			nums.remove(number)
			delete(in, ref)
		} else {
			x.add(keys[ref], ref)
			nums.add(number, ref)
			in[ref] = true
		}
	}
	for i := range keys {
		got, ok := x.get(keys[i])
		job, found := nums.get(uint64(i) * 3)
		if want := in[uint32(i)]; ok != want || found != want || ok && got != uint32(i) || found && job != uint32(i) {
			t.Fatalf("key %d: %d %t, %d %t, want %t", i, got, ok, job, found, want)
		}
	}
	last, n := uint64(0), 0
	nums.from(0, func(number uint64, job uint32) bool {
		if n > 0 && number <= last || !in[job] {
			t.Fatalf("%d follows %d", number, last)
		}
		last = number
		n++
		return true
	})
	if n != len(in) || x.n != n {
		t.Errorf("%d walked, %d in the table, want %d", n, x.n, len(in))
	}
}

// TestWindowGoesRound: positions are stored modulo the number of references.
func TestWindowGoesRound(t *testing.T) {
	t.Parallel()
	var w dedupWindow
	w.init()
	w.base, w.head, w.tail = 3*references-5, 3*references-5, 3*references-5
	for i := range 3000 {
		w.add(Pack(fmt.Sprint(i)), ended{at: int64(i), state: Completed}, 100, nil)
		w.forget(0, 2000)
	}
	for i := range 3000 {
		pos, ok := w.get(Pack(fmt.Sprint(i)), 0)
		if ok != (i >= 1000) || ok && w.at(pos).at != int64(i) {
			t.Fatalf("%d is found at %d, %t", i, pos, ok)
		}
	}
}

// TestFIFOLikeAList: jobs leave a FIFO at any place, and its order stays.
func TestFIFOLikeAList(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	var n fifo
	var want []uint32
	at := map[uint32]uint32{}
	n.base = math.MaxUint32 - 5000 // positions wrap around
	longest := 0
	for step := range uint32(100_000) {
		fill := (step/20_000)%2 == 0
		switch k := rnd.IntN(10); {
		case len(want) == 0 || k < 3 || fill && k < 8:
			at[step] = n.push(step)
			want = append(want, step)
		default:
			pick := 0 // usually the first one
			if k == 9 || !fill {
				pick = rnd.IntN(len(want))
			}
			n.remove(at[want[pick]])
			want = slices.Delete(want, pick, pick+1)
		}
		if n.mostlyGaps() {
			n.compact(func(i, pos uint32) { at[i] = pos })
		}
		if n.live != len(want) || len(want) > 0 && (n.jobs[n.front] != want[0] || n.last() != want[len(want)-1]) {
			t.Fatalf("step %d: %d jobs, want %d", step, n.live, len(want))
		}
		longest = max(longest, n.live)
		if most := 8*longest + 4*minCapacity; cap(n.jobs) > most {
			t.Fatalf("step %d: room for %d, there were %d at most", step, cap(n.jobs), longest)
		}
	}
	got := slices.DeleteFunc(slices.Clone(n.jobs[n.front:]), func(i uint32) bool { return i == gap })
	if !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
}

// TestIndexOfFullBuckets: the lookup of an absent ID ends, even if all buckets of its part have
// overflowed.
func TestIndexOfFullBuckets(t *testing.T) {
	t.Parallel()
	var keys []ID
	var x idTable
	x.init(func(ref uint32) [16]byte { return keys[ref].id }, func(ref uint32, p ID) bool { return keys[ref] == p })
	crowded := func(t *subtable) bool {
		return len(t.buckets) > 1 && !slices.ContainsFunc(t.buckets, func(b bucket) bool { return b.overflow == 0 })
	}
	for n := range 1_000_000 { // for each new one, the oldest of some leaves
		keys = append(keys, Pack(fmt.Sprint("key ", n)))
		x.add(keys[n], uint32(n))
		if old := n - 47*subtables; old >= 0 {
			x.remove(keys[old].id, uint32(old))
		}
		if h := x.hash(keys[n].id); crowded(&x.subtables[h>>56]) {
			for other := range 10_000 {
				if ref, ok := x.get(Pack(fmt.Sprint("other ", other))); ok {
					t.Fatalf("found %d", ref)
				}
			}
			return
		}
	}
	t.Error("no part was crowded")
}

// TestDueWhileHeld: a delayed job that became due while it was held can be claimed in a ledger that
// is restored from a checkpoint of that moment.
func TestDueWhileHeld(t *testing.T) {
	t.Parallel()
	s := report(t)
	n := s.enqueue("a", func(r *Record) { r.RunAt = s.now + 1 })
	if err := s.Hold(n); err != nil {
		t.Fatal(err)
	}
	s.Advance(s.now + 1)
	restore, cut := NewCheckpointReader(), s.BeginCheckpoint()
	for more := true; more; {
		var out []byte
		out, _, more = cut.Write(nil, 1<<20)
		if err := restore.Add(out); err != nil {
			t.Fatal(err)
		}
	}
	l, err := restore.Ledger()
	if err != nil {
		t.Fatal(err)
	}
	if best, ok := l.Best(nil); !ok || best != n {
		t.Fatalf("job %d may be claimed (%t), want %d", best, ok, n)
	}
}
