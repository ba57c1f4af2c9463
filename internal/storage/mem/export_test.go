package mem

// Injected is the number of injected faults that no call has got yet.
func (b *Bucket) Injected() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.injected)
}
