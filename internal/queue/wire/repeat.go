package wire

import (
	"crypto/rand"

	"github.com/emitd/emitd/queue"
)

// ClaimedBefore returns a claim that gets what a call with the same request ID has claimed, and claims nothing itself: no job
// has its type.
//
// Callers send it before they repeat a call. Where several nodes serve a queue, they are called one after the other. The
// one that is called first may have had no jobs then, and would hand out others now; those of the first call would stay
// claimed.
func ClaimedBefore(req queue.ClaimRequest) queue.ClaimRequest {
	req.Types, req.Wait = []string{"none-" + rand.Text()}, 0
	return req
}
