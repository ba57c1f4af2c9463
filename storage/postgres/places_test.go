package postgres

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// In a line that is longer than its calls can wait, each place goes to a call that can still use it. If the calls came in
// turn, each would get its place when its time is nearly over.
func TestALongLineServesTheNewest(t *testing.T) {
	t.Parallel()
	const wait, service, calls = 500 * time.Millisecond, 150 * time.Millisecond, 300
	synctest.Test(t, func(t *testing.T) {
		p := &places{free: 1, newest: true}
		results := make(chan bool, calls)
		for range calls { // three times as many as can be served
			time.Sleep(service / 3)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				if p.take(ctx) != nil {
					results <- false
					return
				}
				defer p.giveBack()
				deadline, _ := ctx.Deadline()
				if tooLate(time.Until(deadline), wait) {
					results <- false
					return
				}
				time.Sleep(service)
				results <- ctx.Err() == nil
			}()
		}
		served := 0
		for range calls {
			if <-results {
				served++
			}
		}
		if most := calls / 3; served < most*9/10 {
			t.Errorf("%d of %d calls were served, want about %d", served, calls, most)
		}
		synctest.Wait()
		if p.free != 1 || len(p.line) != 0 {
			t.Errorf("%d places are free and %d calls wait", p.free, len(p.line))
		}
	})
}

// A short line is served in turn, and a call that gives up leaves no gap.
func TestAShortLineIsServedInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &places{newest: true}
		order := make(chan int, 3)
		for i := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if i == 1 {
				cancel()
			}
			go func() {
				if err := p.take(ctx); err == nil {
					order <- i
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		for range 2 {
			p.giveBack()
			synctest.Wait()
		}
		if a, b := <-order, <-order; a != 0 || b != 2 {
			t.Errorf("calls %d and %d were served, want 0 and 2", a, b)
		}
	})
}
