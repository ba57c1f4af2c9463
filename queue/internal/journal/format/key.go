package format

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// The keys of a journal, below its prefix.
const (
	HeadKey    = "HEAD"
	LogPrefix  = "log/"
	CkptPrefix = "ckpt/"
	// CopyPrefix is the prefix of the copies of HEAD, which are only ever created.
	CopyPrefix = "heads/"
	keptPart   = "kept"
)

// SlotKey returns the key of a slot.
func SlotKey(slot uint64) string { return fmt.Sprintf("%s%020d", LogPrefix, slot) }

// CopyKey returns the key of the copy of the HEAD with this serial number.
func CopyKey(serial uint64) string { return fmt.Sprintf("%s%020d", CopyPrefix, serial) }

// ParseCopyKey returns the serial number of a CopyKey.
func ParseCopyKey(key string) (uint64, bool) { return parseNumbered(CopyPrefix, key) }

// ParseSlotKey returns the slot of a SlotKey.
func ParseSlotKey(key string) (uint64, bool) { return parseNumbered(LogPrefix, key) }

func parseNumbered(prefix, key string) (uint64, bool) {
	digits, ok := strings.CutPrefix(key, prefix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

// PartKey returns the key of part n of a checkpoint; n < 0 means the list of kept slots.
func PartKey(c Checkpoint, n int) string {
	part := keptPart
	if n >= 0 {
		part = fmt.Sprintf("%06d", n)
	}
	return fmt.Sprintf("%s%020d-%016x/%s", CkptPrefix, c.Slot, c.ID, part)
}

// ParsePartKey returns the slot and ID of the checkpoint to which the key of a part belongs.
func ParsePartKey(key string) (c Checkpoint, ok bool) {
	rest, ok := strings.CutPrefix(key, CkptPrefix)
	if !ok || len(rest) < 38 || rest[20] != '-' || rest[37] != '/' {
		return Checkpoint{}, false
	}
	slot, err1 := strconv.ParseUint(rest[:20], 10, 64)
	id, err2 := strconv.ParseUint(rest[21:37], 16, 64)
	return Checkpoint{Slot: slot, ID: id}, err1 == nil && err2 == nil && strings.ToLower(rest[21:37]) == rest[21:37]
}

// EncodeKept returns the record that lists slots in ascending order: the first slot and then the
// differences.
func EncodeKept(slots []uint64) []byte {
	b, last := make([]byte, 0, 2*len(slots)), uint64(0)
	for _, s := range slots {
		b = protowire.AppendVarint(b, s-last)
		last = s
	}
	return b
}

// DecodeKept decodes the record of EncodeKept.
func DecodeKept(b []byte) ([]uint64, error) {
	var slots []uint64
	for last := uint64(0); len(b) > 0; {
		d, n := protowire.ConsumeVarint(b)
		if n < 0 || len(slots) > 0 && d == 0 || last+d < last {
			return nil, fmt.Errorf("%w: the list of kept slots", ErrCorrupt)
		}
		b, last = b[n:], last+d
		slots = append(slots, last)
	}
	return slots, nil
}
