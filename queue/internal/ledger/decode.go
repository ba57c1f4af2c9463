package ledger

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// decodeFact decodes the fields of a fact. A known field with the wrong wire type is ErrCorrupt.
func (r *Record) decodeFact(b []byte) error {
	if r.Kind == Enqueue || r.Kind == savedJob || r.Kind == ImportJob {
		r.Policy = DefaultPolicy
	}
	for len(b) > 0 {
		num, typ, n := protowire.Number(b[0]>>3), protowire.Type(b[0]&7), 1
		if num == 0 || b[0] >= 0x80 { // not one of the frequent fields
			if num, typ, n = protowire.ConsumeTag(b); n < 0 {
				return ErrCorrupt
			}
		}
		b = b[n:]
		switch typ {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 || !r.setInt(num, v) {
				return ErrCorrupt
			}
			b = b[n:]
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 || !r.setBytes(num, v) {
				return ErrCorrupt
			}
			b = b[n:]
		case protowire.Fixed32Type:
			v, n := protowire.ConsumeFixed32(b)
			if n < 0 || num <= fLast && num != fNonce {
				return ErrCorrupt
			}
			if num == fNonce {
				r.Nonce = v
			}
			b = b[n:]
		default:
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 || num <= fLast {
				return ErrCorrupt
			}
			b = b[n:]
		}
	}
	return r.valid()
}

// setInt sets an integer field and reports whether it may have this value; unknown fields may have
// any.
func (r *Record) setInt(f protowire.Number, v uint64) bool {
	switch f {
	case fAt:
		return setTime(&r.At, v)
	case fSize:
		r.Size = int(v)
		return v <= math.MaxInt32
	case fPriority:
		p := protowire.DecodeZigZag(v)
		r.Priority = int8(p)
		return p >= math.MinInt8 && p <= math.MaxInt8
	case fRunAt:
		return setTime(&r.RunAt, v)
	case fExpires:
		return setTime(&r.Expires, v)
	case fEpoch:
		return setTime(&r.Epoch, v)
	case fUntil:
		return setTime(&r.Until, v)
	case fVisibility:
		return setTime(&r.Visibility, v)
	case fTokenless:
		r.Tokenless = v != 0
	case fDead:
		r.Dead = v != 0
	case fLate:
		r.TTLExpired = v != 0
	case fUndelivered:
		r.Undelivered = v != 0
	case fWindow:
		return setTime(&r.Config.DedupWindow, v)
	case fSlot:
		if r.Kind >= header { // a record of the log has the slot that it is in
			r.Slot = v
		}
	case fIDs:
		r.Config.DedupIDs = int(v)
		return v <= math.MaxInt32
	default:
		if r.save == nil { // a record of the log may have such a field; it has no meaning there
			return true
		}
		return r.save.setInt(f, v)
	}
	return true
}

func (s *checkpointFields) setInt(f protowire.Number, v uint64) bool {
	switch f {
	case fState:
		s.state = State(v)
		return v <= uint64(Cancelled)
	case fAttempts:
		return setShort(&s.attempts, v)
	case fDelivers:
		return setShort(&s.delivers, v)
	case fBase:
		return setShort(&s.base, v)
	case fBegun:
		s.begun = v != 0
	case fPaused:
		s.paused = v != 0
	case fPlace:
		s.place = v
	case fDied:
		return setTime(&s.died, v)
	default:
		return f > fLast
	}
	return true
}

// maxTime is small enough that the sum of two times does not overflow.
const maxTime = math.MaxInt64 / 4

func setTime(to *int64, v uint64) bool {
	*to = int64(v)
	return v <= maxTime
}

func setShort(to *uint16, v uint64) bool {
	*to = uint16(v)
	return v <= math.MaxUint16
}

func (r *Record) setBytes(f protowire.Number, v []byte) bool {
	ok := true
	switch f {
	case fNumbers:
		r.Numbers, ok = unpack(r.Numbers, v)
	case fDeliveries:
		r.Deliveries, ok = unpack(r.Deliveries, v)
	case fPlaces:
		r.Places, ok = unpack(r.Places, v)
	case fID:
		r.ID, r.PackedID = string(v), ID{}
	case fUUID:
		if len(v) != 16 {
			return false
		}
		r.ID, r.PackedID = "", ID{id: [16]byte(v), len: idUUID}
	case fType:
		r.Type = r.remember(0, v)
	case fGroup:
		r.Group = string(v)
	case fPayload:
		r.Payload = v
	case fBlob:
		r.Blob = string(v)
	case fPolicy:
		return r.Policy.decode(v)
	case fWorker:
		r.Worker = r.remember(1, v)
	case fRequest:
		r.Request = string(v)
	case fResult:
		r.Result = v
	case fCause:
		r.Cause = string(v)
	case fCounts:
		var counts []uint64
		if counts, ok = unpack(nil, v); r.save != nil {
			copy(r.save.counts[:], counts)
		}
	default:
		return f > fLast
	}
	return ok
}

// remember converts bytes to a string, or returns the last string if it is the same.
func (r *Record) remember(which int, v []byte) string {
	if r.memo == nil {
		return string(v)
	}
	if r.memo[which] != string(v) {
		r.memo[which] = string(v)
	}
	return r.memo[which]
}

func unpack(to []uint64, b []byte) ([]uint64, bool) {
	for len(b) > 0 {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return to, false
		}
		to, b = append(to, v), b[n:]
	}
	return to, true
}

func (p *Policy) decode(b []byte) bool {
	*p = Policy{}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		if typ != protowire.VarintType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 || num <= 6 {
				return false
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeVarint(b)
		if n < 0 || !p.set(num, v) {
			return false
		}
		b = b[n:]
	}
	return p.Max > 0
}

func (p *Policy) set(f protowire.Number, v uint64) bool {
	switch f {
	case 1:
		return setShort(&p.Max, v)
	case 2:
		p.Back = v != 0
	case 3:
		return setFloat(&p.Factor, v)
	case 4:
		return setFloat(&p.Jitter, v)
	case 5:
		return setTime(&p.Backoff, v)
	case 6:
		return setTime(&p.MaxBackoff, v)
	}
	return true
}

// setFloat refuses NaN, which does not equal itself: a policy is used as a map key.
func setFloat(to *float32, v uint64) bool {
	*to = math.Float32frombits(uint32(v))
	return v <= math.MaxUint32 && *to >= -1e9 && *to <= 1e9
}

func (r *Record) named() bool { return r.ID != "" || r.PackedID.len != 0 }

// valid returns ErrCorrupt if a field that the record's kind needs is missing.
func (r *Record) valid() error {
	ok := len(r.Places) == 0 || len(r.Places) == len(r.Numbers)
	switch r.Kind {
	case Enqueue, savedJob, ImportJob:
		ok = ok && len(r.Numbers) == 1 && r.named() && r.Numbers[0] < math.MaxInt64
	case MovePayload:
		ok = ok && len(r.Numbers) == 1 && r.named()
	case Complete, Fail:
		ok = ok && len(r.Numbers) == 1
	case Claim, AttemptStarted, Expire:
		ok = ok && len(r.Numbers) > 0 && len(r.Deliveries) == len(r.Numbers)
		for _, d := range r.Deliveries {
			ok = ok && d <= math.MaxUint16
		}
	case Release, Cancel, DeadLetter, Redrive, Purge, MakeReady:
		ok = ok && len(r.Numbers) > 0
	case endedID: // without ID and state: the entry at this position is gone
		ok = ok && (r.named() && r.save.state >= Completed || !r.named() && r.save.state == None)
	case ImportEnded:
		ok = ok && r.named() && r.save.state >= Completed
	case header:
		ok = ok && (len(r.Numbers) == 3 || len(r.Numbers) == 5)
	case savedSegments:
		ok = ok && len(r.Numbers)%2 == 0
	case runStart:
		ok = ok && len(r.Numbers) == 2 && r.Numbers[0] < math.MaxInt64
	}
	if r.Kind == savedJob || r.Kind == ImportJob {
		ok = ok && r.save.state >= Waiting && r.save.state <= Dead
	}
	if !ok {
		return ErrCorrupt
	}
	return nil
}
