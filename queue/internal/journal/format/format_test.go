package format_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

var codec = format.NewCodec()

type batch struct {
	at      int64
	records []string
}

func encode(h *format.Header, batches ...batch) []byte {
	b := format.NewBody(batches[0].at)
	for _, x := range batches {
		raw := make([][]byte, len(x.records))
		for i, r := range x.records {
			raw[i] = []byte(r)
		}
		b.Add(x.at, raw...)
	}
	return codec.Encode(h, &b)
}

func decode(t *testing.T, raw []byte) (*format.Segment, []batch) {
	t.Helper()
	s, err := codec.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	var got []batch
	for _, b := range s.Batches {
		x := batch{at: b.At}
		for r := range b.Records() {
			x.records = append(x.records, string(r))
		}
		got = append(got, x)
	}
	return s, got
}

func TestSegmentsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("all work and no play ", 500)
	for name, want := range map[string][]batch{
		"one empty record": {{1_700_000_000_000_000, []string{""}}},
		"several calls":    {{5, []string{"a", "b"}}, {5, []string{"c"}}, {900, []string{"d"}}, {math.MaxInt64 / 2, []string{"e"}}},
		"before 1970":      {{-1000, []string{"a"}}, {-10, []string{"b"}}},
		"long":             {{1, []string{long, "x"}}, {2, []string{long}}},
	} {
		h := format.Header{Slot: 7, Epoch: 3, PutID: 99}
		raw := encode(&h, want...)
		s, got := decode(t, raw)
		if !slices.EqualFunc(got, want, func(a, b batch) bool { return a.at == b.at && slices.Equal(a.records, b.records) }) {
			t.Errorf("%s: %v", name, got)
		}
		if s.Header != h || s.Size != len(raw) || s.Last() != want[len(want)-1].at {
			t.Errorf("%s: %+v, %+v", name, s.Header, h)
		}
		if head, err := format.DecodeHeader(raw[:format.HeaderSize]); err != nil || !head.SamePut(h) {
			t.Errorf("%s: the header alone: %+v, %v", name, head, err)
		}
		if len(raw) <= format.FenceSize {
			t.Errorf("%s: %d bytes look like a fence", name, len(raw))
		}
	}
	h := format.Header{Slot: 1, Epoch: 1}
	if raw := encode(&h, batch{1, []string{long}}); len(raw) > 300 {
		t.Errorf("%d bytes were not compressed: %d", len(long), len(raw))
	}
}

// TestOnlyFencesHaveTheSizeOfAFence: a long sequence of one byte compresses to almost nothing; it
// must not look like a fence in a listing.
func TestOnlyFencesHaveTheSizeOfAFence(t *testing.T) {
	t.Parallel()
	for n := range 3000 {
		h := format.Header{Slot: 1, Epoch: 1}
		if raw := encode(&h, batch{1, []string{strings.Repeat("a", n)}}); len(raw) <= format.FenceSize {
			t.Fatalf("a record of %d bytes makes a segment of %d", n, len(raw))
		}
	}
	h := format.Header{Slot: 1, Epoch: 1, Fence: true, Jump: 8}
	b := format.NewBody(5)
	raw := codec.Encode(&h, &b)
	s, got := decode(t, raw)
	if len(raw) != format.FenceSize || len(got) != 0 || s.Header.Jump != 8 || !s.Header.Fence || s.Last() != 5 {
		t.Errorf("%d bytes, %+v", len(raw), s)
	}
}

// seal computes the checksum of a modified segment.
func seal(b []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Update(0, table, b[:40]), table, b[44:])
	binary.LittleEndian.PutUint32(b[40:], sum)
	return b
}

func TestBadSegmentsAreRefusedByKind(t *testing.T) {
	t.Parallel()
	h := format.Header{Slot: 1, Epoch: 1}
	good := encode(&h, batch{1, []string{"a", "b"}})
	f := format.Header{Slot: 1, Epoch: 1, Fence: true, Jump: 8}
	body := format.NewBody(5)
	fence := codec.Encode(&f, &body)
	idle := format.NewBody(5)
	idle.Add(5)
	mark := codec.Encode(&format.Header{Slot: 2, Epoch: 1, Previous: 9, AckedUpTo: 1}, &idle)
	if s, err := codec.Decode(mark); err != nil || len(mark) <= format.FenceSize || s.Header.Previous != 9 || s.Header.AckedUpTo != 1 || s.Header.Records != 0 {
		t.Errorf("a mark of %d bytes: %+v, %v", len(mark), s, err)
	}
	set := func(raw []byte, at int, v byte) []byte {
		raw = bytes.Clone(raw)
		raw[at] = v
		return seal(raw)
	}
	for name, c := range map[string]struct {
		raw  []byte
		kind error
	}{
		"empty":               {nil, format.ErrCorrupt},
		"half a header":       {good[:24], format.ErrCorrupt},
		"another magic":       {set(good, 0, 'X'), format.ErrCorrupt},
		"a newer version":     {set(good, 4, 3), format.ErrNewer},
		"an unknown flag":     {set(good, 5, 8), format.ErrNewer},
		"a reserved byte":     {set(good, 7, 1), format.ErrNewer},
		"cut off":             {good[:len(good)-1], format.ErrCorrupt},
		"a flipped bit":       {func() []byte { b := bytes.Clone(good); b[66] ^= 1; return b }(), format.ErrCorrupt},
		"epoch 0":             {set(good, 16, 0), format.ErrCorrupt},
		"another count":       {set(good, 32, 3), format.ErrCorrupt},
		"another length":      {set(good, 36, 1), format.ErrCorrupt},
		"a huge body":         {set(good, 39, 0xff), format.ErrCorrupt},
		"a jump":              {set(good, 44, 1), format.ErrCorrupt},
		"not compressed":      {set(good, 5, 1), format.ErrCorrupt},
		"a fence of records":  {set(good, 5, 2), format.ErrCorrupt},
		"a part of nothing":   {set(mark, 5, 4), format.ErrCorrupt},
		"a fence without end": {set(fence, 47, 0xff), format.ErrCorrupt},
		"a fence of 0":        {set(fence, 44, 0), format.ErrCorrupt},
		"no time":             {set(good, 64, 0x11), format.ErrCorrupt},
		"another field":       {set(good, 73, 0x1a), format.ErrCorrupt},
		"a batch too long":    {set(good, 74, 0x7f), format.ErrCorrupt},
		"an unknown record":   {set(good, 75, 0x1a), format.ErrCorrupt},
	} {
		if _, err := codec.Decode(c.raw); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSamePut(t *testing.T) {
	t.Parallel()
	h := format.Header{PutID: 1, Records: 2, CRC: 3, Epoch: 4}
	for _, o := range []format.Header{{PutID: 9, Records: 2, CRC: 3}, {PutID: 1, Records: 9, CRC: 3}, {PutID: 1, Records: 2, CRC: 9}} {
		if h.SamePut(o) {
			t.Errorf("%+v is taken for %+v", o, h)
		}
	}
	if !h.SamePut(h) {
		t.Error("a write is not itself")
	}
}

// sealHead does the same for HEAD.
func sealHead(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

var fullHead = format.Head{
	Epoch: 12, StoreID: "store", Generation: 7, Owner: "node-1", Nonce: 1 << 63, Window: 8, Secret: []byte("0123456789"),
	Checkpoint: format.Checkpoint{Slot: 900, ID: 77, Parts: 3, Bytes: 1 << 40, Kept: 2, Time: -5},
	Previous:   format.Checkpoint{Slot: 800, ID: 76}, Closed: 901,
}

func equalHeads(a, b format.Head) bool {
	same := bytes.Equal(a.Secret, b.Secret)
	return same && bytes.Equal(format.EncodeHead(a), format.EncodeHead(b))
}

// withRuns returns a HEAD whose checkpoints have runs: of an earlier checkpoint, of the previous
// one, and their own.
func withRuns() format.Head {
	h := fullHead
	h.Previous.Runs = []format.Run{{Slot: 5, ID: 1 << 63, Part: 7}, {Slot: 800, ID: 76}}
	h.Checkpoint.Runs = []format.Run{{Slot: 800, ID: 76}, {Slot: 900, ID: 77}, {Slot: 900, ID: 77, Part: 2}}
	return h
}

func TestHeadComesBackAsItWas(t *testing.T) {
	t.Parallel()
	for _, h := range []format.Head{fullHead, {Epoch: 1, Window: 1}, withRuns()} {
		got, err := format.DecodeHead(format.EncodeHead(h))
		if err != nil || !equalHeads(got, h) || !reflect.DeepEqual(got.Checkpoint, h.Checkpoint) || got.Nonce != h.Nonce || got.Closed != h.Closed {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// TestObjectsOfACheckpoint: a state begins with its runs; the other parts follow.
func TestObjectsOfACheckpoint(t *testing.T) {
	t.Parallel()
	c := withRuns().Checkpoint
	if got := append(slices.Clone(c.Runs), format.Run{Slot: 900, ID: 77, Part: 1}); !slices.Equal(c.Objects(), got) {
		t.Errorf("%+v", c.Objects())
	}
	if c.Runs[1].Key() != format.PartKey(c, 0) {
		t.Errorf("%s is not part of %+v", c.Runs[1].Key(), c)
	}
	if got := (format.Checkpoint{}).Objects(); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestHeadsBeforeRuns: the HEAD of a journal without runs and kept slots has the same bytes as before
// there were any. With them, its features exclude programs that do not know them from owning the journal.
func TestHeadsBeforeRuns(t *testing.T) {
	t.Parallel()
	const before = "RU1IRDA5XTgIARgMIgVzdG9yZSgHMgZub2RlLTE5AAAAAAAAAIBACEoKMDEyMzQ1Njc4OVIZCIQHEE0YAyCAgICAgCAw+///////////AVoFCKAGEExghQc="
	old, err := base64.StdEncoding.DecodeString(before)
	if err != nil {
		t.Fatal(err)
	}
	plain := fullHead
	plain.Checkpoint.Kept = 0
	if got, err := format.DecodeHead(old); err != nil || !equalHeads(got, plain) || !bytes.Equal(format.EncodeHead(plain), old) {
		t.Errorf("%+v, %v", got, err)
	}
	previous := withRuns()
	previous.Checkpoint.Runs = nil // what the next collection must not delete
	kept, keptBefore := plain, plain
	kept.Checkpoint.Kept, keptBefore.Previous.Kept = 1, 1
	for h, bits := range map[*format.Head]byte{new(withRuns()): 1 | 4, &previous: 1 | 4, &kept: 4, &keptBefore: 4} {
		if b := format.EncodeHead(*h); b[8+2] != 2<<3 || b[8+3] != bits {
			t.Errorf("features: % x, want %d", b[8:12], bits)
		}
	}
}

// TestHeadsOfOtherPrograms: a later version may add fields that this one can ignore; features name
// those that it cannot.
func TestHeadsOfOtherPrograms(t *testing.T) {
	t.Parallel()
	with := func(field protowire.Number, v uint64) []byte {
		return sealHead(protowire.AppendVarint(protowire.AppendTag(format.EncodeHead(fullHead), field, protowire.VarintType), v))
	}
	if got, err := format.DecodeHead(with(99, 1)); err != nil || !equalHeads(got, fullHead) {
		t.Errorf("an unknown field: %v", err)
	}
	bad := fullHead
	bad.Closed = 5
	later := withRuns()
	later.Checkpoint.Runs[0].Slot = 901
	far := withRuns()
	far.Checkpoint.Runs[0].Part = format.MaxParts
	for name, c := range map[string]struct {
		raw  []byte
		kind error
	}{
		"empty":             {nil, format.ErrCorrupt},
		"another magic":     {[]byte("EMSG00000000"), format.ErrCorrupt},
		"a flipped bit":     {func() []byte { b := format.EncodeHead(fullHead); b[9] ^= 1; return b }(), format.ErrCorrupt},
		"cut off":           {format.EncodeHead(fullHead)[:40], format.ErrCorrupt},
		"a newer format":    {with(1, 2), format.ErrNewer},
		"an unknown need":   {with(2, 8), format.ErrNewer},
		"no epoch":          {format.EncodeHead(format.Head{Window: 1}), format.ErrCorrupt},
		"no window":         {format.EncodeHead(format.Head{Epoch: 1}), format.ErrCorrupt},
		"a huge window":     {with(8, 1<<40), format.ErrCorrupt},
		"closed before":     {format.EncodeHead(bad), format.ErrCorrupt},
		"checkpoints moved": {format.EncodeHead(format.Head{Epoch: 1, Window: 1, Previous: format.Checkpoint{Slot: 2}}), format.ErrCorrupt},
		"a later run":       {format.EncodeHead(later), format.ErrCorrupt},
		"a run too far":     {format.EncodeHead(far), format.ErrCorrupt},
		"too many parts":    {format.EncodeHead(format.Head{Epoch: 1, Window: 1, Checkpoint: format.Checkpoint{Parts: format.MaxParts + 1}}), format.ErrCorrupt},
	} {
		if _, err := format.DecodeHead(c.raw); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	for _, slot := range []uint64{0, 1, 12345678901234567890, math.MaxUint64} {
		if got, ok := format.ParseSlotKey(format.SlotKey(slot)); !ok || got != slot {
			t.Errorf("%d: %d, %t", slot, got, ok)
		}
		c := format.Checkpoint{Slot: slot, ID: slot ^ 0xabcdef}
		for _, part := range []int{-1, 0, 7, 999_999} {
			if got, ok := format.ParsePartKey(format.PartKey(c, part)); !ok || got.Slot != c.Slot || got.ID != c.ID {
				t.Errorf("%s: %+v", format.PartKey(c, part), got)
			}
		}
	}
	if a, b := format.SlotKey(9), format.SlotKey(10); a >= b {
		t.Errorf("%s does not come before %s", a, b)
	}
	for _, key := range []string{"", "log/1", "log/0000000000000000000x", "HEAD", "ckpt/1-2/3", "ckpt/0000000000000000000x-0000000000000000/0"} {
		if _, ok := format.ParseSlotKey(key); ok {
			t.Errorf("%q is a slot", key)
		}
		if _, ok := format.ParsePartKey(key); ok {
			t.Errorf("%q is a part", key)
		}
	}
}

func TestKeptSlots(t *testing.T) {
	t.Parallel()
	for _, want := range [][]uint64{nil, {0}, {1, 2, 3}, {5, 1 << 40, math.MaxUint64}} {
		got, err := format.DecodeKept(format.EncodeKept(want))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%v: %v, %v", want, got, err)
		}
	}
	for _, raw := range [][]byte{{0x80}, {1, 0}, protowire.AppendVarint([]byte{5}, math.MaxUint64)} {
		if _, err := format.DecodeKept(raw); !errors.Is(err, format.ErrCorrupt) {
			t.Errorf("% x: %v", raw, err)
		}
	}
}

// TestTheFirstVersionIsRead: a segment from before segments contained the previous put ID can be
// read.
func TestTheFirstVersionIsRead(t *testing.T) {
	t.Parallel()
	old := format.Header{Slot: 7, Epoch: 3, PutID: 99, Previous: 5, AckedUpTo: 6}
	raw := encode(&old, batch{1, []string{"a"}})
	raw = slices.Delete(raw, 48, 64)
	raw[4] = 1
	s, got := decode(t, seal(raw))
	if h := s.Header; h.Slot != 7 || h.PutID != 99 || h.Previous != 0 || h.AckedUpTo != 0 || !h.CanFollow(12345) || len(got) != 1 || got[0].records[0] != "a" {
		t.Errorf("%+v, %v", s, got)
	}
}
