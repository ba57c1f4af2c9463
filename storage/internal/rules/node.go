package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Register fills the row of a process that registers: an empty row, or the tombstone that a leader
// made of it. What the process has heard and seen stays in the row; marks such as late or deaf do
// not. It returns the text of what the node advertises, see [Advertise]. The store writes the row.
func Register(r Rows, row *node.Member, b storage.Heartbeat, now time.Time) (advert []byte) {
	reason := ""
	if row.State == node.Removed {
		reason = "returned"
	}
	row.Identity = b.Node
	row.State, row.LeaderState, row.ExitProven = node.Live, "", false
	row.EndedAt, row.EndReason = time.Time{}, ""
	row.RegisteredAt, row.ConfirmedAt = now, now
	r.Emit(NodeEvent(daemon.NodeRegistered, row.Identity, reason), now)
	return Advertise(row, b.Advert)
}

// Advertise records in the row what the node advertises, and returns its text. Stores keep each
// text once, under the hash that the row contains.
func Advertise(row *node.Member, a *daemon.Advert) (text []byte) {
	text = a.Encode()
	sum := sha256.Sum256(text)
	row.Traits, row.Advert = a.Traits, hex.EncodeToString(sum[:16])
	row.Labels = maps.Clone(a.Traits.Labels)
	return text
}
