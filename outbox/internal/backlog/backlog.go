// Package backlog bounds what waits for a user's hook: messages may be large, so their number alone bounds nothing.
package backlog

import "sync/atomic"

// limit is how many bytes may wait, unless one call alone has more.
const limit = 64 << 20

// Bytes counts the bytes that wait for a hook. The zero value has none.
type Bytes struct{ held atomic.Int64 }

// Take counts the bytes of a call. It returns false, and counts nothing, if there is no room for them.
func (b *Bytes) Take(n int64) bool {
	if all := b.held.Add(n); all <= limit || all == n {
		return true
	}
	b.Free(n)
	return false
}

// Free gives back what Take has counted.
func (b *Bytes) Free(n int64) { b.held.Add(-n) }

// Size returns about how many bytes a message takes that has these texts.
func Size(payload []byte, headers map[string]string, texts ...string) int64 {
	n := len(payload) + 256
	for name, value := range headers {
		n += len(name) + len(value)
	}
	for _, text := range texts {
		n += len(text)
	}
	return int64(n)
}
