package ledger

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Kind is the kind of a record; it is the number of the record's field in ledger.proto.
type Kind uint8

// The kinds of records. See the package comment for which are hard and which soft.
const (
	Enqueue        Kind = 1
	Claim          Kind = 2 // soft, unless the caller waits until it is durable
	AttemptStarted Kind = 3 // soft: the first proof that an attempt began
	Complete       Kind = 4
	Fail           Kind = 5
	Release        Kind = 6
	Expire         Kind = 7 // soft: a claim's visibility timeout is over
	Cancel         Kind = 8
	DeadLetter     Kind = 9 // the job is dead
	Redrive        Kind = 10
	Purge          Kind = 11
	Pause          Kind = 12
	Resume         Kind = 13
	Configure      Kind = 14
	MakeReady      Kind = 15 // a delayed job may be claimed now
	MovePayload    Kind = 16 // the payload of a job is in this segment now, too
	Seal           Kind = 17 // the last record of a shard whose jobs move to other shards
	ImportBegin    Kind = 18 // the state of former shards follows; what was before is void
	ImportJob      Kind = 19 // a job of a former shard
	ImportEnded    Kind = 20 // an ID in the deduplication window of a former shard
	ImportEnd      Kind = 21 // the state of the former shards is complete

	// Kinds that occur only in checkpoints.
	header        Kind = 32
	savedJob      Kind = 33 // a job
	endedID       Kind = 34 // an ID in the deduplication window
	trailer       Kind = 35
	runStart      Kind = 36 // begins a run: endings follow, without a gap
	savedSegments Kind = 37 // segments of the log that have payloads
)

func (k Kind) known() bool {
	return k >= Enqueue && k <= ImportEnd || k >= header && k <= savedSegments
}

// hasSaved reports whether records of this kind have checkpointFields.
func (k Kind) hasSaved() bool { return k >= header || k >= ImportBegin && k <= ImportEnd }

// Record is one decided fact. The kind determines which fields are used.
type Record struct {
	Kind Kind
	At   int64 // when it was decided

	// Numbers of the jobs it is about; exactly one for Enqueue, Complete, Fail,
	// MovePayload.
	Numbers []uint64
	// Deliveries, parallel to Numbers, for Claim, AttemptStarted and Expire: the number of the
	// delivery.
	Deliveries []uint64
	// Places, parallel to Numbers, for Fail, Expire and Release: the job's new place; none or 0
	// keeps its place.
	Places []uint64

	// Enqueue; MovePayload has ID and Payload.
	ID, Type, Group string
	PackedID        ID     // used instead of ID, if set
	Payload         []byte // valid while the decoded bytes are; Apply copies it
	SharedPayload   string // used instead of Payload, if set: Apply keeps it
	Blob            string // used instead of Payload: key of a payload object
	Size            int    // size of that object; in a checkpoint, also of a payload that is in a segment
	// Slot is the slot of the log that has an Enqueue or MovePayload record. It is not encoded: whoever
	// applies the record sets it. In a checkpoint it is the segment with a job's payload.
	Slot     uint64
	Priority int8
	RunAt    int64 // also for Fail and Release: when the job may be claimed; 0: now
	Expires  int64 // 0 is never
	Policy   Policy

	// Claim. Epoch is also used by AttemptStarted and Expire: together with the delivery it identifies
	// the claim.
	Worker, Request   string
	Epoch             int64
	Nonce             uint32
	Until, Visibility int64
	Tokenless         bool

	Result     []byte // Complete
	Cause      string // Fail, Expire, DeadLetter
	Dead       bool   // for Fail: no further attempt
	TTLExpired bool   // for DeadLetter: because its time to live was over
	// Undelivered is for Release and DeadLetter: the claim that ends never reached a worker. It
	// counts as no attempt and as none of the deliveries after which a job is dead.
	Undelivered bool

	Config Config // Configure

	save *checkpointFields // only in checkpoints and imports

	memo *lastStrings // reuses repeated strings when decoding
}

// lastStrings holds the last Type and Worker that were decoded.
type lastStrings [2]string

// checkpointFields holds the fields that only checkpoints and imports have.
type checkpointFields struct {
	state              State
	attempts, delivers uint16
	base               uint16
	begun, paused      bool
	place              uint64
	died               int64
	counts             [6]uint64
}

// DefaultPolicy is omitted from records, so its value must never change.
var DefaultPolicy = Policy{Max: 3, Factor: 2, Jitter: 0.2, Backoff: 1000, MaxBackoff: 300_000}

// Field numbers of the message Fact in ledger.proto.
const (
	fAt         protowire.Number = 1
	fNumbers    protowire.Number = 2
	fDeliveries protowire.Number = 3
	fID         protowire.Number = 4
	fUUID       protowire.Number = 5
	fType       protowire.Number = 6
	fGroup      protowire.Number = 7
	fPayload    protowire.Number = 8
	fBlob       protowire.Number = 9
	fSize       protowire.Number = 10
	fPriority   protowire.Number = 11
	fRunAt      protowire.Number = 12
	fExpires    protowire.Number = 13
	fPolicy     protowire.Number = 14
	fWorker     protowire.Number = 15
	fRequest    protowire.Number = 16
	fEpoch      protowire.Number = 17
	fNonce      protowire.Number = 18
	fUntil      protowire.Number = 19
	fVisibility protowire.Number = 20
	fTokenless  protowire.Number = 21
	fResult     protowire.Number = 22
	fCause      protowire.Number = 23
	fPlaces     protowire.Number = 24
	fDead       protowire.Number = 25
	fLate       protowire.Number = 26
	fWindow     protowire.Number = 27
	fIDs        protowire.Number = 28
	fState      protowire.Number = 29
	fAttempts   protowire.Number = 30
	fDelivers   protowire.Number = 31
	fBase       protowire.Number = 32
	fBegun      protowire.Number = 33
	fPaused     protowire.Number = 34
	fPlace      protowire.Number = 35
	fDied       protowire.Number = 36
	fCounts     protowire.Number = 37

	fUndelivered protowire.Number = 38

	fSlot protowire.Number = 39

	fLast = fSlot // higher field numbers are of a newer version
)

// Append appends the record in wire format to b.
func (r *Record) Append(b []byte) []byte {
	b = protowire.AppendTag(b, protowire.Number(r.Kind), protowire.BytesType)
	// The length is written before the content, when it is not known yet: reserve two bytes,
	// and move the content if it needs more.
	start := len(b)
	b = append(b, 0, 0)
	b = r.appendFact(b)
	size := len(b) - start - 2
	if need := protowire.SizeVarint(uint64(size)); need > 2 {
		var room [8]byte
		b = append(b, room[:need-2]...)
		copy(b[start+need:], b[start+2:start+2+size])
		protowire.AppendVarint(b[:start], uint64(size))
		return b
	}
	b[start], b[start+1] = byte(size)|0x80, byte(size>>7)
	return b
}

func (r *Record) appendFact(b []byte) []byte {
	b = appendInt(b, fAt, uint64(r.At))
	b = appendPacked(b, fNumbers, r.Numbers)
	b = appendPacked(b, fDeliveries, r.Deliveries)
	b = appendPacked(b, fPlaces, r.Places)
	switch r.Kind {
	case Enqueue, savedJob, endedID, ImportJob, ImportEnded:
		b = r.appendJob(b)
	case MovePayload:
		b = appendBytes(r.appendID(b), fPayload, r.Payload)
	}
	switch r.Kind {
	case Claim, savedJob, ImportJob:
		b = appendText(b, fWorker, r.Worker)
		b = appendText(b, fRequest, r.Request)
		b = appendInt(b, fUntil, uint64(r.Until))
		b = appendInt(b, fVisibility, uint64(r.Visibility))
		b = appendBool(b, fTokenless, r.Tokenless)
	}
	b = appendInt(b, fEpoch, uint64(r.Epoch))
	if r.Nonce != 0 {
		b = protowire.AppendTag(b, fNonce, protowire.Fixed32Type)
		b = protowire.AppendFixed32(b, r.Nonce)
	}
	b = appendInt(b, fRunAt, uint64(r.RunAt))
	b = appendBytes(b, fResult, r.Result)
	b = appendText(b, fCause, r.Cause)
	b = appendBool(b, fDead, r.Dead)
	b = appendBool(b, fLate, r.TTLExpired)
	b = appendBool(b, fUndelivered, r.Undelivered)
	b = appendInt(b, fWindow, uint64(r.Config.DedupWindow))
	b = appendInt(b, fIDs, uint64(r.Config.DedupIDs))
	if r.save != nil {
		b = appendInt(b, fSlot, r.Slot)
		b = r.save.append(b)
	}
	return b
}

// appendID appends the ID of a job.
func (r *Record) appendID(b []byte) []byte {
	var uuid [16]byte
	switch {
	case r.PackedID.len == idUUID:
		b = appendBytes(b, fUUID, r.PackedID.id[:])
	case r.PackedID.len == idLong:
		b = appendText(b, fID, r.PackedID.long)
	case r.PackedID.len != 0:
		b = appendBytes(b, fID, r.PackedID.id[:r.PackedID.len])
	case parseUUID(r.ID, &uuid):
		b = appendBytes(b, fUUID, uuid[:])
	default:
		b = appendText(b, fID, r.ID)
	}
	return b
}

func (r *Record) appendJob(b []byte) []byte {
	b = r.appendID(b)
	b = appendText(b, fType, r.Type)
	b = appendText(b, fGroup, r.Group)
	b = appendBytes(b, fPayload, r.Payload)
	b = appendText(b, fPayload, r.SharedPayload)
	b = appendText(b, fBlob, r.Blob)
	b = appendInt(b, fSize, uint64(r.Size))
	b = appendInt(b, fPriority, protowire.EncodeZigZag(int64(r.Priority)))
	b = appendInt(b, fExpires, uint64(r.Expires))
	if r.Policy != DefaultPolicy && r.Policy != (Policy{}) {
		b = protowire.AppendTag(b, fPolicy, protowire.BytesType)
		b = protowire.AppendBytes(b, r.Policy.append(nil))
	}
	return b
}

func (s *checkpointFields) append(b []byte) []byte {
	b = appendInt(b, fState, uint64(s.state))
	b = appendInt(b, fAttempts, uint64(s.attempts))
	b = appendInt(b, fDelivers, uint64(s.delivers))
	b = appendInt(b, fBase, uint64(s.base))
	b = appendBool(b, fBegun, s.begun)
	b = appendBool(b, fPaused, s.paused)
	b = appendInt(b, fPlace, s.place)
	b = appendInt(b, fDied, uint64(s.died))
	if s.counts != [6]uint64{} {
		b = appendPacked(b, fCounts, s.counts[:])
	}
	return b
}

func (p Policy) append(b []byte) []byte {
	b = appendInt(b, 1, uint64(p.Max))
	b = appendBool(b, 2, p.Back)
	b = appendInt(b, 3, uint64(math.Float32bits(p.Factor)))
	b = appendInt(b, 4, uint64(math.Float32bits(p.Jitter)))
	b = appendInt(b, 5, uint64(p.Backoff))
	return appendInt(b, 6, uint64(p.MaxBackoff))
}

func appendInt(b []byte, f protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, f, protowire.VarintType), v)
}

func appendBool(b []byte, f protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	return appendInt(b, f, 1)
}

func appendText(b []byte, f protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, f, protowire.BytesType), v)
}

func appendBytes(b []byte, f protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, f, protowire.BytesType), v)
}

func appendPacked(b []byte, f protowire.Number, v []uint64) []byte {
	if len(v) == 0 {
		return b
	}
	size := 0
	for _, n := range v {
		size += protowire.SizeVarint(n)
	}
	b = protowire.AppendTag(b, f, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	for _, n := range v {
		b = protowire.AppendVarint(b, n)
	}
	return b
}

// Decode decodes one record. Payload and Result alias b; slices of r are reused. Unknown fields are
// ignored; an unknown kind is ErrNewer.
func (r *Record) Decode(b []byte) error {
	err := r.decode(b)
	if r.PackedID.len != 0 {
		r.ID, r.PackedID = r.PackedID.String(), ID{}
	}
	return err
}

// packed returns the ID of a job's record.
func (r *Record) packed() ID {
	if r.PackedID.len != 0 {
		return r.PackedID
	}
	return Pack(r.ID)
}

// decode is Decode, but leaves an ID packed.
func (r *Record) decode(b []byte) error {
	spare := r.save
	*r = Record{Numbers: r.Numbers[:0], Deliveries: r.Deliveries[:0], Places: r.Places[:0], memo: r.memo}
	newer := false
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("decode a record: %w", ErrCorrupt)
		}
		b = b[n:]
		if typ != protowire.BytesType || num > math.MaxUint8 || !Kind(num).known() {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return fmt.Errorf("decode a record: %w", ErrCorrupt)
			}
			newer, b = true, b[n:]
			continue
		}
		fact, n := protowire.ConsumeBytes(b)
		if n < 0 || r.Kind != 0 {
			return fmt.Errorf("decode a record: %w", ErrCorrupt)
		}
		r.Kind, b = Kind(num), b[n:]
		if r.Kind.hasSaved() {
			if spare == nil {
				spare = new(checkpointFields)
			}
			*spare, r.save = checkpointFields{}, spare
		}
		if err := r.decodeFact(fact); err != nil {
			return fmt.Errorf("decode a record of kind %d: %w", num, err)
		}
	}
	switch {
	case r.Kind == 0 && newer:
		return fmt.Errorf("decode a record: %w", ErrNewer)
	case r.Kind == 0:
		return fmt.Errorf("decode an empty record: %w", ErrCorrupt)
	}
	return nil
}
