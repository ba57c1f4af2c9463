package channel

import "testing"

func TestIsClosed(t *testing.T) {
	t.Parallel()
	var none chan int
	c := make(chan struct{})
	if IsClosed(c) || IsClosed(none) {
		t.Error("an open channel and none are said to be closed")
	}
	close(c)
	for range 2 {
		if !IsClosed(c) {
			t.Error("a closed channel is said to be open")
		}
	}
}
