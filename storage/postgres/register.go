package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"

	"github.com/emitd/emitd/node"
)

// onlyRegisters reports whether the function register_8 can serve the heartbeat: it registers and does nothing else that
// writes. What a node sends first is one.
func (b *beat) onlyRegisters() bool {
	return b.Advert != nil && !b.TermRequest.Campaign && b.TermRequest.Renew == 0 && len(b.ExitEvidence) == 0 && len(b.ReturnedRuns) == 0
}

// writeRegistration writes a registration as one call of the function register_8, which does what [beat.register] and
// [beat.read] do, and the statement for the member list.
func (b *beat) writeRegistration(m *message, advert []byte) {
	b.sent = true
	traits := cleaned(b.Advert.Traits)
	b.otherCluster.Node = traits.Cluster
	args := []any{m.serverTimeout, inc(b.Node), cleanText(string(b.Node.ID)), cleanText(b.Node.Name)}
	for _, n := range []int64{micros(b.TTL), number(b.Seq), number(b.ConfirmedSeq), b.HighestTerm, b.HighestGeneration} {
		args = append(args, strconv.FormatInt(n, 10)) // a quoted number needs no cast: the function has one form
	}
	args = append(args, strconv.FormatBool(traits.NeverLead), hashOf(advert), cleanText(string(advert)), encode(traits), traits.Cluster)
	for _, n := range []int64{b.shared.after, b.shared.after + maxMemberEvents} {
		args = append(args, strconv.FormatInt(n, 10))
	}
	args = append(args, strconv.FormatBool(b.store.cfg.Notify != NotifyPoll))
	m.query(func(answer *composite) error {
		c := answer.row()
		b.scanAdmission(c)
		b.otherCluster.Store = c.text()
		if !b.admitted {
			return c.err
		}
		return b.scanReply(c)
	}, "register_by_function", args...)
	if b.WantMembers && !b.listLater {
		m.commit()
		b.readMembers(m)
	}
}

// scanAdmission reads whether a registration was admitted, and which process has the ID if it was not.
func (b *beat) scanAdmission(c *composite) {
	b.admitted = c.bool()
	b.taken.ID, b.taken.Holder.Name = node.ID(c.text()), c.text()
	b.taken.Holder.Incarnation, b.taken.SeenAt = node.Incarnation(c.text()), c.time()
	c.json(&b.taken.Host)
}

// advertise writes what the node advertises, and locks the rows that a registration needs, its own among them.
func (b *beat) advertise(m *message, advert []byte) {
	m.do("advertise", hashOf(advert), cleanText(string(advert)))
	m.do("nodes_lock", array(append(slices.Clone(b.ExitEvidence), b.Node.Incarnation)))
}

// register writes the own row.
func (b *beat) register(m *message, advert []byte) {
	b.otherCluster.Node = cleanText(b.Advert.Traits.Cluster)
	m.do("name_cluster", b.otherCluster.Node)
	m.query(func(c *composite) error {
		b.scanAdmission(c)
		c.skip(2) // the columns of the wake-ups sent and of the mark
		b.otherCluster.Store = c.text()
		b.scanFormer(c)
		return nil
	}, "register", inc(b.Node), cleanText(string(b.Node.ID)), cleanText(b.Node.Name), micros(b.TTL), number(b.Seq), number(b.ConfirmedSeq),
		b.HighestTerm, b.HighestGeneration, b.Advert.Traits.NeverLead, hashOf(advert), encode(cleaned(b.Advert.Traits)), b.otherCluster.Node, array(b.ExitEvidence))
}

// noteRegistration remembers whose registration was sent and not answered in time. Such a node may be a member and not know it.
// It sends no heartbeats then but registers again, and must not wait for all that register for the first time: it
// would be taken for dead.
func (s *Store) noteRegistration(ctx context.Context, b *beat, err error) {
	switch {
	case err == nil && ctx.Err() == nil:
		s.unanswered.Delete(b.Node.Incarnation)
	case b.Advert != nil && b.sent:
		s.unanswered.Store(b.Node.Incarnation, true)
	}
}

// hashOf returns the hash that names what a node advertises.
func hashOf(advert []byte) string {
	sum := sha256.Sum256(advert)
	return hex.EncodeToString(sum[:16])
}

// cleaned makes traits that Postgres can store: see plain.
func cleaned(t node.Traits) node.Traits {
	labels := make(map[string]string, len(t.Labels))
	for k, v := range t.Labels {
		labels[cleanText(k)] = cleanText(v)
	}
	if t.Labels != nil {
		t.Labels = labels
	}
	t.Version, t.Address, t.Cluster = cleanText(t.Version), cleanText(t.Address), cleanText(t.Cluster)
	t.Host.BootID, t.Host.Start, t.Host.Lock = cleanText(t.Host.BootID), cleanText(t.Host.Start), cleanText(t.Host.Lock)
	return t
}
