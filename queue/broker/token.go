package broker

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"sync"
)

// token proves a claim. Its text is
//
//	base64url(version 1 · shard · number · epoch · delivery · nonce (4 bytes) · MAC (16 bytes))
//
// with the numbers as varints. The MAC is HMAC-SHA256, cut to 128 bits, over everything before it
// and the job's ID. Its key was made with the shard's journal, so tokens stay valid when the shard
// changes brokers. A token of another queue, shard or job, or a forged one, is refused.
type token struct {
	shard    int
	number   uint64
	epoch    int64
	delivery uint64
	nonce    uint32
	former   bool // of a former shard, from before the queue got another number of shards; not part of the text
}

const (
	tokenVersion = 1
	macSize      = 16
	maxToken     = 256
)

// tokenCodec makes and verifies tokens. One goroutine at a time may use it; a shard has a pool of them.
type tokenCodec struct {
	mac  hash.Hash
	sum  []byte
	body []byte
	text []byte
	raw  [maxToken]byte
}

// tokenText is the encoding of tokens. It is strict: each token has exactly one text.
var tokenText = base64.RawURLEncoding.Strict()

func newTokenCodecs(key []byte) *sync.Pool {
	return &sync.Pool{New: func() any { return &tokenCodec{mac: hmac.New(sha256.New, key)} }}
}

// sign returns the MAC of a token's first part. It is valid until the next call.
func (s *tokenCodec) sign(body []byte, id string) []byte {
	s.mac.Reset()
	s.mac.Write(body)
	s.text = append(s.text[:0], id...)
	s.mac.Write(s.text)
	s.sum = s.mac.Sum(s.sum[:0])
	return s.sum[:macSize]
}

// encode returns the text of a token for the job with this ID.
func (s *tokenCodec) encode(t token, id string) string {
	b := s.body[:0]
	b = append(b, tokenVersion)
	b = binary.AppendUvarint(b, uint64(t.shard))
	b = binary.AppendUvarint(b, t.number)
	b = binary.AppendUvarint(b, uint64(t.epoch))
	b = binary.AppendUvarint(b, t.delivery)
	b = binary.BigEndian.AppendUint32(b, t.nonce)
	b = append(b, s.sign(b, id)...)
	s.body, s.text = b, tokenText.AppendEncode(s.text[:0], b)
	return string(s.text)
}

// decode parses a token and reports whether it is genuine and belongs to the job with this ID.
func (s *tokenCodec) decode(text, id string) (token, bool) {
	t, body, mac, ok := parseToken(text, &s.raw)
	if !ok || !hmac.Equal(mac, s.sign(body, id)) {
		return token{}, false
	}
	return t, true
}

// parseToken parses a token without verifying its MAC. body and mac point into room.
func parseToken(text string, room *[maxToken]byte) (t token, body, mac []byte, ok bool) {
	if len(text) > maxToken {
		return token{}, nil, nil, false
	}
	n, err := tokenText.Decode(room[:], []byte(text))
	raw := room[:n]
	if err != nil || len(raw) < 1+macSize || raw[0] != tokenVersion {
		return token{}, nil, nil, false
	}
	body, mac = raw[:len(raw)-macSize], raw[len(raw)-macSize:]
	rest := body[1:]
	var numbers [4]uint64
	for i := range numbers {
		v, n := binary.Uvarint(rest)
		if n <= 0 {
			return token{}, nil, nil, false
		}
		numbers[i], rest = v, rest[n:]
	}
	if len(rest) != 4 || numbers[0] >= maxShards || numbers[2] > 1<<62 {
		return token{}, nil, nil, false
	}
	return token{
		shard: int(numbers[0]), number: numbers[1], epoch: int64(numbers[2]), delivery: numbers[3], nonce: binary.BigEndian.Uint32(rest),
	}, body, mac, true
}
