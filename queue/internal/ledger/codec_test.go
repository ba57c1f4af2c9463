package ledger

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

var samples = []Record{
	{Kind: Enqueue, At: 1_700_000_000_000, Numbers: []uint64{7}, ID: "0190b5a0-0000-7000-8000-0123456789ab", Type: "mail", Group: "g", Payload: []byte("{}"), Priority: -128, RunAt: 3, Expires: 4, Policy: Policy{Max: 9, Back: true, Factor: 1.5, Jitter: -1, Backoff: 5, MaxBackoff: 6}},
	{Kind: Enqueue, At: 1, Numbers: []uint64{1 << 60}, ID: "x", Blob: "blob/x", Size: 1 << 24, Priority: 127, Policy: DefaultPolicy},
	{Kind: Claim, At: 1, Numbers: []uint64{1, 300, 1 << 40}, Deliveries: []uint64{1, 2, 65535}, Worker: "w", Request: "r", Epoch: 1 << 40, Nonce: 1 << 31, Until: 9, Visibility: 8, Tokenless: true},
	{Kind: AttemptStarted, At: 1, Numbers: []uint64{1}, Deliveries: []uint64{1}},
	{Kind: Complete, At: 1, Numbers: []uint64{1}, Result: bytes.Repeat([]byte("r"), 20_000)},
	{Kind: Fail, At: 1, Numbers: []uint64{1}, Places: []uint64{77}, Cause: "broken", RunAt: 99, Dead: true},
	{Kind: Release, At: 1, Numbers: []uint64{1, 2}, Places: []uint64{0, 5}},
	{Kind: Expire, At: 1, Numbers: []uint64{1}, Deliveries: []uint64{3}, Cause: "late"},
	{Kind: Cancel, At: 1, Numbers: []uint64{1, 2, 3}},
	{Kind: DeadLetter, At: 1, Numbers: []uint64{1}, Cause: "too old", TTLExpired: true},
	{Kind: DeadLetter, At: 1, Numbers: []uint64{1}, Cause: "gone", Undelivered: true},
	{Kind: Release, At: 1, Numbers: []uint64{1}, RunAt: 7, Cause: "unreadable", Undelivered: true},
	{Kind: Redrive, At: 1, Numbers: []uint64{1}},
	{Kind: Purge, At: 1, Numbers: []uint64{1}},
	{Kind: Pause, At: 1},
	{Kind: Resume, At: 1},
	{Kind: Configure, At: 1, Config: Config{DedupWindow: 600_000, DedupIDs: 5}},
	{Kind: MakeReady, At: 1, Numbers: []uint64{1}},
}

func TestRecordsComeBack(t *testing.T) {
	t.Parallel()
	for _, r := range samples {
		wire := r.Append([]byte("before"))
		var back Record
		if err := back.Decode(wire[6:]); err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		for _, list := range []*[]uint64{&back.Numbers, &back.Deliveries, &back.Places} {
			if len(*list) == 0 {
				*list = nil
			}
		}
		if !reflect.DeepEqual(back, r) || string(wire[:6]) != "before" {
			t.Errorf("came back as\n%+v\nwant\n%+v", back, r)
		}
	}
}

// TestNewerRecords: unknown fields are ignored; an unknown kind is ErrNewer.
func TestNewerRecords(t *testing.T) {
	t.Parallel()
	fact := appendInt(appendText(appendInt(nil, fAt, 5), 400, "later"), 401, 7)
	fact = protowire.AppendFixed32(protowire.AppendTag(fact, 402, protowire.Fixed32Type), 1)
	fact = protowire.AppendFixed64(protowire.AppendTag(fact, 403, protowire.Fixed64Type), 1)
	var r Record
	if err := r.Decode(appendInt(appendBytes(nil, protowire.Number(Pause), fact), 500, 1)); err != nil || r.At != 5 || r.Kind != Pause {
		t.Errorf("%+v, %v", r, err)
	}
	for _, wire := range [][]byte{appendBytes(nil, 30, fact), appendInt(nil, 1, 3), appendText(nil, 4000, "x")} {
		if err := r.Decode(wire); !errors.Is(err, ErrNewer) {
			t.Errorf("%x: %v", wire, err)
		}
	}
}

func TestBadRecords(t *testing.T) {
	t.Parallel()
	one := func(k Kind, fact []byte) []byte {
		return appendBytes(nil, protowire.Number(k), append(appendInt(nil, fAt, 1), fact...))
	}
	number := appendPacked(nil, fNumbers, []uint64{1})
	for name, wire := range map[string][]byte{
		"nothing":            nil,
		"half a tag":         {0x80},
		"half a fact":        {0x0a, 9, 1},
		"half a number":      one(Cancel, []byte{0x12, 1, 0x80}),
		"no number":          one(Cancel, nil),
		"no ID":              one(Enqueue, number),
		"two kinds":          append(one(Pause, nil), one(Resume, nil)...),
		"no deliveries":      one(Claim, number),
		"a great delivery":   one(Claim, appendPacked(number, fDeliveries, []uint64{1 << 16})),
		"a short UUID":       one(Enqueue, appendText(number, fUUID, "short")),
		"a great priority":   one(Enqueue, appendInt(appendText(number, fID, "a"), fPriority, protowire.EncodeZigZag(128))),
		"a time out of time": one(Enqueue, appendInt(appendText(number, fID, "a"), fRunAt, 1<<62)),
		"text as a number":   one(Enqueue, appendText(number, fAt, "a")),
		"a number as text":   one(Enqueue, appendInt(number, fID, 3)),
		"no attempts":        one(Enqueue, appendBytes(appendText(number, fID, "a"), fPolicy, appendInt(nil, 5, 1))),
		"not a factor":       one(Enqueue, appendBytes(appendText(number, fID, "a"), fPolicy, appendInt(appendInt(nil, 1, 1), 3, 0x7fc00000))),
		"places astray":      one(Release, appendPacked(number, fPlaces, []uint64{1, 2})),
	} {
		var r Record
		if err := r.Decode(wire); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, %+v", name, err, r)
		}
	}
}

// TestProtoFile: the document has each kind and field with the number that the code uses.
func TestProtoFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("ledger.proto")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("record.go")
	if err != nil {
		t.Fatal(err)
	}
	_, record, _ := strings.Cut(string(text), "message Record {")
	record, fact, _ := strings.Cut(record, "message Fact {")
	check := func(where, body, pattern string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(source), -1) {
			if !regexp.MustCompile(`= ` + m[2] + `;`).MatchString(body) {
				t.Errorf("%s does not have %s = %s", where, m[1], m[2])
			}
		}
	}
	check("message Fact", fact, `(?m)^\tf([A-Z]\w*) +protowire.Number = (\d+)$`)
	check("message Record", record, `(?m)^\t(\w+) +Kind = (\d+)`)
	if n := strings.Count(fact, ";"); n < int(fCounts) {
		t.Errorf("message Fact has %d lines, want at least %s", n, strconv.Itoa(int(fCounts)))
	}
}

func FuzzRecord(f *testing.F) {
	for _, r := range samples {
		f.Add(r.Append(nil))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var r, back Record
		if err := r.Decode(wire); err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer) {
				t.Fatal(err)
			}
			return
		}
		again := r.Append(nil)
		if err := back.Decode(again); err != nil {
			t.Fatalf("%+v, written and read: %v", r, err)
		}
		if third := back.Append(nil); !bytes.Equal(third, again) {
			t.Fatalf("%x, written again %x", again, third)
		}
		l := New(Config{})
		_ = l.Apply(&r, 1)
		_ = l.Apply(&r, 1)
		l.Stats()
	})
}

func FuzzRestore(f *testing.F) {
	f.Add(checkpointOf(f, 10))
	f.Add(slices.Concat(withRuns(f)...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewCheckpointReader()
		if err := r.Add(b); err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer) {
				t.Fatal(err)
			}
			return
		}
		if l, err := r.Ledger(); err == nil {
			l.TakeOver(l.Now() + 1)
			l.Stats()
			cutAll(l)
		}
	})
}

func checkpointOf(t testing.TB, jobs int) []byte {
	l := New(Config{})
	for i := range jobs {
		r := Record{Kind: Enqueue, At: 1000, Numbers: []uint64{l.NextNumber()}, ID: "0190b5a0-0000-7000-8000-" + strconv.Itoa(100_000_000_000+i), Policy: DefaultPolicy, Payload: make([]byte, 100)}
		if err := l.Apply(&r, 1000); err != nil {
			t.Fatal(err)
		}
	}
	for n, kind := range []Kind{Cancel, DeadLetter} {
		if err := l.Apply(&Record{Kind: kind, At: 1000, Numbers: []uint64{uint64(n) + 1}}, 1000); err != nil {
			t.Fatal(err)
		}
	}
	var out []byte
	for c, more := l.BeginCheckpoint(), true; more; {
		out, _, more = c.Write(out, 1<<16)
	}
	return out
}

// TestTornCheckpoint: an incomplete checkpoint is refused.
func TestTornCheckpoint(t *testing.T) {
	t.Parallel()
	whole := checkpointOf(t, 20)
	var ends []int
	for at := 0; at < len(whole); {
		_, n := protowire.ConsumeBytes(whole[at:])
		at += n
		ends = append(ends, at)
	}
	for n, end := range ends[:len(ends)-1] {
		r := NewCheckpointReader()
		err := r.Add(whole[:end])
		if err == nil {
			_, err = r.Ledger()
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("without its end: %v", err)
		}
		if n < 2 {
			continue
		}
		r = NewCheckpointReader() // without one record in the middle
		err = errors.Join(r.Add(whole[:ends[n-1]]), r.Add(whole[end:]))
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("without record %d: %v", n, err)
		}
		r = NewCheckpointReader() // with one record twice
		err = errors.Join(r.Add(whole[:end]), r.Add(whole[ends[n-1]:]))
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("with record %d twice: %v", n, err)
		}
	}
}

func BenchmarkRestoreMillion(b *testing.B) {
	whole := checkpointOf(b, 1_000_000)
	for b.Loop() {
		start := time.Now()
		r := NewCheckpointReader()
		if err := r.Add(whole); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(start).Seconds(), "s/restore")
		b.ReportMetric(float64(len(whole))/1e6, "MB")
	}
}

func BenchmarkCycle(b *testing.B) {
	for _, n := range []int{10_000, 100_000, 1_000_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			r := NewCheckpointReader()
			if err := r.Add(checkpointOf(b, n)); err != nil {
				b.Fatal(err)
			}
			l := r.l
			claim := Record{Kind: Claim, Numbers: []uint64{0}, Deliveries: []uint64{1}, Until: 5000, Visibility: 30_000, Worker: "w"}
			end := Record{Kind: Complete, Numbers: []uint64{0}}
			add := Record{Kind: Enqueue, Numbers: []uint64{0}, Policy: DefaultPolicy, Payload: make([]byte, 100)}
			i := 0
			for b.Loop() {
				i++
				add.Numbers[0], add.ID = l.NextNumber(), "new-"+strconv.Itoa(i)
				if err := l.Apply(&add, 2000); err != nil {
					b.Fatal(err)
				}
				claim.Numbers[0], _ = l.Best(nil)
				if err := l.Apply(&claim, 2000); err != nil {
					b.Fatal(err)
				}
				end.Numbers[0] = claim.Numbers[0]
				if err := l.Apply(&end, 2000); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
