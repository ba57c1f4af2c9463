package owner

import "time"

// RecordsPerWrite is how many records pay for the segment that carries them. With 8 writes a second, 16
// clients who submit, claim and complete in turn on a store of 50 ms still get 98 % of what it allows, and
// 100 jobs a second, one by one, cost 200 writes for 1,000 jobs.
const RecordsPerWrite = 27

// budget limits the writes of segments: a store of the cloud bills each one. It is a bucket of tokens.
// Time fills it, and so do records: a segment of [RecordsPerWrite] records or more costs nothing, so
// the budget slows down a queue with few calls only, and its throughput is not limited. The bucket holds
// the writes of one second, so that a call after a pause is written at once.
//
// The zero value has no limit.
type budget struct {
	every time.Duration // time that earns one write; 0: no limit
	spent time.Duration // when all writes so far will have been earned
}

func newBudget(perSecond float64) budget {
	if perSecond <= 0 {
		return budget{}
	}
	return budget{every: max(1, time.Duration(float64(time.Second)/perSecond)), spent: never}
}

// nextAt returns when the next write is allowed.
func (b *budget) nextAt() time.Duration {
	if b.every == 0 {
		return never
	}
	return b.spent - b.capacity()
}

// capacity is the time that fills the bucket: a second, or one write if that takes longer. The
// write that nextAt allows is not part of it.
func (b *budget) capacity() time.Duration { return max(0, time.Second-b.every) }

// earn counts records that wait for a write.
func (b *budget) earn(records int) {
	b.spent = max(never, b.spent-time.Duration(records)*b.every/RecordsPerWrite)
}

// spend counts a write. Writes that did not wait for nextAt, of full segments, never make a later one
// wait longer than one write's time.
func (b *budget) spend(now time.Duration) {
	b.spent = min(max(b.spent, now)+b.every, now+b.capacity()+b.every)
}
