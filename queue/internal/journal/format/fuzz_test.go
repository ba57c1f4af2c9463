package format_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// known fails if an error has no kind that a caller can act on.
func known(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, format.ErrCorrupt) && !errors.Is(err, format.ErrNewer) {
		t.Errorf("an error of no kind: %v", err)
	}
}

// FuzzSegment: decoding any bytes returns a segment or a kind of error. A decoded segment has as
// many records as its header says.
func FuzzSegment(f *testing.F) {
	h := format.Header{Slot: 1, Epoch: 1}
	f.Add(encode(&h, batch{1, []string{"a", "b"}}, batch{2, []string{""}}))
	f.Add(encode(&h, batch{1, []string{strings.Repeat("abc", 1000)}}))
	f.Add([]byte("EMSG"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) >= format.HeaderSize { // otherwise the checksum refuses almost everything
			raw = seal(bytes.Clone(raw))
		}
		s, err := codec.Decode(raw)
		known(t, err)
		if err != nil {
			return
		}
		n := uint32(0)
		for _, b := range s.Batches {
			for range b.Records() {
				n++
			}
		}
		if n != s.Header.Records {
			t.Errorf("%d records, the header says %d", n, s.Header.Records)
		}
	})
}

func FuzzHeader(f *testing.F) {
	h := format.Header{Slot: 1, Epoch: 1}
	f.Add(encode(&h, batch{1, []string{"a"}})[:format.HeaderSize])
	f.Fuzz(func(t *testing.T, raw []byte) {
		_, err := format.DecodeHeader(raw)
		known(t, err)
	})
}

func FuzzHead(f *testing.F) {
	f.Add(format.EncodeHead(fullHead))
	f.Add(format.EncodeHead(withRuns()))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) >= 8 {
			raw = sealHead(bytes.Clone(raw))
		}
		h, err := format.DecodeHead(raw)
		known(t, err)
		if err != nil {
			return
		}
		again, err := format.DecodeHead(format.EncodeHead(h))
		if err != nil || !equalHeads(h, again) {
			t.Errorf("%+v came back as %+v, %v", h, again, err)
		}
	})
}

// FuzzKeys: only keys in the exact form that is written are parsed as those of slots and parts. So
// other objects in a bucket are never taken for garbage.
func FuzzKeys(f *testing.F) {
	f.Add(format.SlotKey(1))
	f.Add(format.SlotKey(1<<64 - 1))
	for part := range 3 {
		f.Add(format.PartKey(format.Checkpoint{Slot: 7, ID: 1 << 63}, part-1))
	}
	f.Add("log/+0000000000000000001")
	f.Add("ckpt/00000000000000000007-80000000000ABCDE/000000")
	f.Fuzz(func(t *testing.T, key string) {
		if slot, ok := format.ParseSlotKey(key); ok && format.SlotKey(slot) != key {
			t.Errorf("%q is taken for slot %d", key, slot)
		}
		c, ok := format.ParsePartKey(key)
		if at := strings.LastIndexByte(format.PartKey(c, 0), '/') + 1; ok && !strings.HasPrefix(key, format.PartKey(c, 0)[:at]) {
			t.Errorf("%q is taken for a part of %+v", key, c)
		}
	})
}

func FuzzKept(f *testing.F) {
	f.Add(format.EncodeKept([]uint64{1, 5, 1 << 40}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		slots, err := format.DecodeKept(raw)
		known(t, err)
		if err == nil && (!slices.IsSorted(slots) || len(slices.Compact(slices.Clone(slots))) != len(slots)) {
			t.Errorf("%v is not ascending", slots)
		}
	})
}
