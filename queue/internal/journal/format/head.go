package format

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Head is the content of HEAD: who owns the journal and where its newest checkpoint is.
type Head struct {
	Epoch int64 // grows with every takeover
	// StoreID is the part of the store identity that outlives a failover and a reboot. An owner with another one is
	// refused.
	StoreID    string
	Generation int64
	Owner      string // UUID of the broker that owns the journal; it tells two owners of one generation apart
	// Nonce is random and new with every write. So no two versions of HEAD have the same bytes, and an owner whose
	// write got no answer can tell whether HEAD is what it wrote.
	Nonce uint64
	// Window is the most segments that an owner may have in flight: it writes no slot further than this behind the
	// first one that is not acknowledged. It is the highest value of all owners since the last fence.
	Window int
	Secret []byte
	// Checkpoint is the newest checkpoint. Previous is the one before it, which can still be
	// restored.
	Checkpoint, Previous Checkpoint
	// Closed is the first slot that was not written when the owner closed; 0: it did not close.
	Closed uint64
	// AckedBelow is the slot below which every segment was acknowledged. Unlike Closed, it is never
	// reset.
	AckedBelow uint64
	// Serial is the number of changes of HEAD. If another copy of HEAD has a higher number, this one is outdated. 0:
	// written by a version that did not count.
	Serial uint64
	// Name identifies the journal's content; empty: not known.
	Name string
	// Repair is the name of the repair that has begun and has not ended; meanwhile only a
	// repair may own the journal. Empty: none.
	Repair string
}

// FirstLink returns what a journal's first segment contains in place of a put ID: each other segment contains the put ID
// of the one before it. It is derived from the secret, so it differs between journals.
func (h *Head) FirstLink() uint64 {
	sum := sha256.Sum256(h.Secret)
	return binary.LittleEndian.Uint64(sum[:])
}

// Checkpoint identifies a stored state. The zero Checkpoint is the empty state before slot 1.
type Checkpoint struct {
	Slot      uint64 // the first slot that the state does not cover
	ID        uint64 // random
	Parts     int
	Bytes     int64
	Kept      int    // number of slots below Slot whose payloads the state still refers to (kept slots); a separate object lists them
	Time      int64  // the newest time in the journal at that point, µs since 1970
	LastPutID uint64 // put ID of the last segment or fence that the state covers; 0: not known
	// Runs are the first parts of the state, in this order: window runs, written by this checkpoint or by earlier
	// ones.
	Runs []Run
}

// Run identifies a part of a checkpoint. Later checkpoints can refer to the part instead of writing it again.
type Run struct {
	Slot uint64 // of the checkpoint that wrote it
	ID   uint64
	Part int
}

// Key returns the key of the part.
func (r Run) Key() string { return PartKey(Checkpoint{Slot: r.Slot, ID: r.ID}, r.Part) }

// Start returns the slot at which replay begins.
func (c Checkpoint) Start() uint64 { return max(c.Slot, 1) }

// Objects returns the parts of the state in the order in which they are restored: the runs, and
// then the other parts of this checkpoint.
func (c Checkpoint) Objects() []Run {
	all, mine := slices.Clone(c.Runs), map[int]bool{}
	for _, r := range c.Runs {
		if r.Slot == c.Slot && r.ID == c.ID {
			mine[r.Part] = true
		}
	}
	for part := range c.Parts {
		if !mine[part] {
			all = append(all, Run{Slot: c.Slot, ID: c.ID, Part: part})
		}
	}
	return all
}

const headFormat = 1

// Features that a program must know to own the journal, as bits of the field features. A program that does not know
// runs would restore a checkpoint without them, and delete them. A program that does not know kept slots would take
// the payloads in these slots for lost.
const (
	featureRuns   = 1 // a checkpoint has runs
	featureRepair = 2 // a repair has begun
	featureKept   = 4 // a checkpoint refers to slots below it
	allFeatures   = featureRuns | featureRepair | featureKept
)

func (h *Head) features() (bits uint64) {
	if len(h.Checkpoint.Runs)+len(h.Previous.Runs) > 0 {
		bits |= featureRuns
	}
	if h.Repair != "" {
		bits |= featureRepair
	}
	if h.Checkpoint.Kept+h.Previous.Kept > 0 {
		bits |= featureKept
	}
	return bits
}

// The fields of the messages Head and Checkpoint.
const (
	headFormatField = iota + 1
	headFeatures
	headEpoch
	headStoreID
	headGeneration
	headOwner
	headNonce
	headWindow
	headSecret
	headCheckpoint
	headPrevious
	headClosed
	headKnown
	headSerial
	headName
	headRepair
)

const (
	ckptSlot = iota + 1
	ckptID
	ckptParts
	ckptBytes
	ckptKept
	ckptTime
	ckptRun
	ckptLast
)

const (
	runSlot = iota + 1
	runID
	runPart
)

// EncodeHead encodes HEAD.
func EncodeHead(h Head) []byte {
	b := make([]byte, 8, 256)
	copy(b, magicHead[:])
	b = appendNumber(b, headFormatField, headFormat)
	b = appendNumber(b, headFeatures, h.features())
	b = appendNumber(b, headEpoch, uint64(h.Epoch))
	b = appendBytes(b, headStoreID, []byte(h.StoreID))
	b = appendNumber(b, headGeneration, uint64(h.Generation))
	b = appendBytes(b, headOwner, []byte(h.Owner))
	b = protowire.AppendTag(b, headNonce, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, h.Nonce)
	b = appendNumber(b, headWindow, uint64(h.Window))
	b = appendBytes(b, headSecret, h.Secret)
	b = appendBytes(b, headCheckpoint, h.Checkpoint.encode())
	b = appendBytes(b, headPrevious, h.Previous.encode())
	b = appendNumber(b, headClosed, h.Closed)
	b = appendNumber(b, headKnown, h.AckedBelow)
	b = appendNumber(b, headSerial, h.Serial)
	b = appendBytes(b, headName, []byte(h.Name))
	b = appendBytes(b, headRepair, []byte(h.Repair))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

func (c Checkpoint) encode() []byte {
	var b []byte
	b = appendNumber(b, ckptSlot, c.Slot)
	b = appendNumber(b, ckptID, c.ID)
	b = appendNumber(b, ckptParts, uint64(c.Parts))
	b = appendNumber(b, ckptBytes, uint64(c.Bytes))
	b = appendNumber(b, ckptKept, uint64(c.Kept))
	b = appendNumber(b, ckptTime, uint64(c.Time))
	for _, r := range c.Runs {
		var run []byte
		run = appendNumber(run, runSlot, r.Slot)
		run = appendNumber(run, runID, r.ID)
		run = appendNumber(run, runPart, uint64(r.Part))
		b = protowire.AppendBytes(protowire.AppendTag(b, ckptRun, protowire.BytesType), run)
	}
	if c.LastPutID != 0 {
		b = protowire.AppendFixed64(protowire.AppendTag(b, ckptLast, protowire.Fixed64Type), c.LastPutID)
	}
	return b
}

func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

// DecodeHead decodes HEAD.
func DecodeHead(b []byte) (Head, error) {
	if len(b) < 8 || [4]byte(b) != magicHead {
		return Head{}, fmt.Errorf("%w: HEAD does not begin with %q", ErrCorrupt, magicHead)
	}
	if sum := crc32.Checksum(b[8:], castagnoli); sum != binary.LittleEndian.Uint32(b[4:]) {
		return Head{}, fmt.Errorf("%w: the checksum of HEAD is wrong", ErrCorrupt)
	}
	var h Head
	var form, features uint64
	err := fields(b[8:], func(num protowire.Number, v uint64, s []byte) error {
		switch num {
		case headFormatField:
			form = v
		case headFeatures:
			features = v
		case headCheckpoint, headPrevious:
			c, err := decodeCheckpoint(s)
			if num == headCheckpoint {
				h.Checkpoint = c
			} else {
				h.Previous = c
			}
			return err
		default:
			h.set(num, v, s)
		}
		return nil
	})
	switch {
	case form != headFormat || features&^allFeatures != 0:
		return Head{}, fmt.Errorf("%w: HEAD has format %d, features %#x; this program knows %d, %#x", ErrNewer, form, features, headFormat, allFeatures)
	case err != nil:
		return Head{}, err
	}
	return h, h.check()
}

func (h *Head) set(num protowire.Number, v uint64, s []byte) {
	switch num {
	case headEpoch:
		h.Epoch = int64(v)
	case headStoreID:
		h.StoreID = string(s)
	case headGeneration:
		h.Generation = int64(v)
	case headOwner:
		h.Owner = string(s)
	case headNonce:
		h.Nonce = v
	case headWindow:
		h.Window = int(min(v, MaxWindow+1))
	case headSecret:
		h.Secret = append([]byte(nil), s...)
	case headClosed:
		h.Closed = v
	case headKnown:
		h.AckedBelow = v
	case headSerial:
		h.Serial = v
	case headName:
		h.Name = string(s)
	case headRepair:
		h.Repair = string(s)
	}
}

func (h *Head) check() error {
	c, p := h.Checkpoint, h.Previous
	switch {
	case h.Epoch < 1, h.Window < 1, h.Window > MaxWindow:
		return fmt.Errorf("%w: HEAD has epoch %d and window %d", ErrCorrupt, h.Epoch, h.Window)
	case c.Slot < p.Slot, h.Closed != 0 && h.Closed < c.Slot:
		return fmt.Errorf("%w: HEAD has checkpoints %d and %d and was closed at %d", ErrCorrupt, p.Slot, c.Slot, h.Closed)
	}
	return nil
}

func decodeCheckpoint(b []byte) (Checkpoint, error) {
	var c Checkpoint
	err := fields(b, func(num protowire.Number, v uint64, s []byte) error {
		switch num {
		case ckptSlot:
			c.Slot = v
		case ckptID:
			c.ID = v
		case ckptParts:
			c.Parts = int(min(v, 1<<31))
		case ckptBytes:
			c.Bytes = int64(v)
		case ckptKept:
			c.Kept = int(min(v, 1<<31))
		case ckptTime:
			c.Time = int64(v)
		case ckptRun:
			r, err := decodeRun(s)
			c.Runs = append(c.Runs, r)
			return err
		case ckptLast:
			c.LastPutID = v
		}
		return nil
	})
	if err == nil && (c.Parts > MaxParts || c.Bytes < 0) {
		err = fmt.Errorf("%w: a checkpoint of %d parts and %d bytes", ErrCorrupt, c.Parts, c.Bytes)
	}
	if n := slices.IndexFunc(c.Runs, func(r Run) bool { return r.Slot > c.Slot || r.Part >= MaxParts }); err == nil && n >= 0 {
		err = fmt.Errorf("%w: the run %s in checkpoint %d", ErrCorrupt, c.Runs[n].Key(), c.Slot)
	}
	return c, err
}

func decodeRun(b []byte) (Run, error) {
	var r Run
	err := fields(b, func(num protowire.Number, v uint64, _ []byte) error {
		switch num {
		case runSlot:
			r.Slot = v
		case runID:
			r.ID = v
		case runPart:
			r.Part = int(min(v, 1<<31))
		}
		return nil
	})
	return r, err
}

// MaxParts is the limit for the parts of a checkpoint: a corrupt number must not cause endless
// reads.
const MaxParts = 1 << 20

// fields calls f for every field of a message. Fields of other wire types are skipped.
func fields(b []byte, f func(num protowire.Number, v uint64, s []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrCorrupt, protowire.ParseError(n))
		}
		b = b[n:]
		var v uint64
		var s []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			v, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			s, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return fmt.Errorf("%w: field %d: %w", ErrCorrupt, num, protowire.ParseError(n))
		}
		if err := f(num, v, s); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
