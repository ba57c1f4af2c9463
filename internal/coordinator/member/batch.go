package member

import "github.com/emitd/emitd/storage"

// batch bounds how many rows one call may carry. A call that fails may have been too long for its timeout, so the
// next one carries a quarter. Each success doubles the number. Without this, a store that needs longer than the
// timeout for a full batch would never learn anything.
type batch struct{ most int }

// fewestInBatch is where a batch stops shrinking. A store that is too slow for so few rows counts as away.
const fewestInBatch = 16

// newBatch returns a batch that may carry as many rows as a call can.
func newBatch() batch { return batch{storage.MaxChanges} }

func (b *batch) failed()    { b.most = max(b.most/4, fewestInBatch) }
func (b *batch) succeeded() { b.most = min(2*b.most, storage.MaxChanges) }

// atMost returns how many of n rows the next call carries.
func (b *batch) atMost(n int) int { return min(n, b.most) }
