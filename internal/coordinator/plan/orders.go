package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Answer is what a leader should write about an open command.
type Answer struct {
	ID     string
	Result string
	Done   bool
}

// orders is what the open commands ask for. Everything follows from the commands and the rows, so another leader that
// reads the same finds the same: no command is carried out twice, and none is lost.
type orders struct {
	*planner
	rows     map[daemon.Unit]*daemon.Record
	standing map[subject]*daemon.Command
	// pins and moves have the node that a unit is to go to.
	pins  map[daemon.Unit]string
	moves map[daemon.Unit]move
	// accepted are moves and restarts in the order of their submission.
	accepted []*daemon.Command
	answers  []Answer
	handOver *HandOver
	// rebalances ask for even loads. Their answers follow from the round.
	rebalances []*daemon.Command
}

// subject is what a standing command is about.
type subject struct {
	kind   daemon.CommandKind
	node   string
	daemon daemon.ID
	index  int // wholeDaemon for a daemon
	key    string
}

const wholeDaemon = -1

// move is a move or a restart of a unit that is under way.
type move struct {
	to   string
	rule Rule
}

// HandOver asks the leader to resign, so that another node leads.
type HandOver struct {
	Actor string
}

// readOrders reads the open commands, oldest first.
func (p *planner) readOrders() {
	o := &orders{planner: p}
	p.orders = o
	if len(p.in.Commands) == 0 {
		return
	}
	o.rows, o.standing = map[daemon.Unit]*daemon.Record{}, map[subject]*daemon.Command{}
	o.pins, o.moves = map[daemon.Unit]string{}, map[daemon.Unit]move{}
	for i := range p.in.Units {
		o.rows[p.in.Units[i].Unit] = &p.in.Units[i]
	}
	for i := range p.in.Commands {
		o.read(&p.in.Commands[i])
	}
	for _, c := range o.accepted { // standing commands come first: a move obeys those that were submitted after it
		o.readMove(c)
	}
	o.drains()
	slices.SortFunc(o.answers, func(a, b Answer) int { return strings.Compare(a.ID, b.ID) })
}

// read handles one command.
func (o *orders) read(c *daemon.Command) {
	args, err := c.Arguments()
	switch {
	case err != nil:
		o.refuse(c, err.Error())
		return
	case c.Result == "" && c.Term != 0 && c.Term != o.in.Term.Number && c.Kind != daemon.CommandResign:
		o.end(c, daemon.ResultConflict, fmt.Sprintf("expected term %d, the term is %d", c.Term, o.in.Term.Number))
		return
	}
	whole := subject{daemon: args.Daemon, index: wholeDaemon}
	if u := args.Unit(); !u.IsZero() {
		whole.index, whole.key = u.Index, u.Key
	}
	switch c.Kind {
	case daemon.CommandCordon, daemon.CommandDrain:
		o.stand(c, subject{kind: c.Kind, node: args.Node}, o.nodeObstacle(args.Node))
	case daemon.CommandUncordon:
		o.lift(c, fmt.Sprintf("%s is not cordoned", args.Node),
			subject{kind: daemon.CommandCordon, node: args.Node}, subject{kind: daemon.CommandDrain, node: args.Node})
	case daemon.CommandForget:
		o.forget(c, args.Node)
	case daemon.CommandPause:
		whole.kind = c.Kind
		o.stand(c, whole, o.unknownUnit(args))
	case daemon.CommandResume:
		whole.kind = daemon.CommandPause
		o.lift(c, o.notPaused(args), whole)
	case daemon.CommandPin:
		whole.kind = c.Kind
		why := o.unknownUnit(args)
		if why == "" {
			why = o.obstacle(args.Unit(), args.To)
		}
		if o.stand(c, whole, why) {
			o.pins[args.Unit()] = args.To
		}
	case daemon.CommandUnpin:
		whole.kind = daemon.CommandPin
		if o.lift(c, fmt.Sprintf("%s is not pinned", args.Unit()), whole) {
			delete(o.pins, args.Unit())
		}
	case daemon.CommandMove, daemon.CommandRestart:
		o.accepted = append(o.accepted, c)
	case daemon.CommandRebalance:
		o.rebalances = append(o.rebalances, c)
	case daemon.CommandResign:
		o.resign(c, args.To)
	}
}

// answerRebalances ends the commands that ask for even loads once they are even. Until then, rounds are due.
func (o *orders) answerRebalances() {
	for _, c := range o.rebalances {
		switch {
		case o.in.NoRounds:
			o.refuse(c, "the leader moves nothing to make loads even (coordinator.max_moves_per_round is 0)")
		case o.balanced:
			o.end(c, daemon.ResultDone, "the loads are even")
		default:
			o.underWay(c)
		}
	}
}

// stand takes a standing command into force. A new one is refused if something is in its way. One that is in force
// stays so, whatever became of its subject.
func (o *orders) stand(c *daemon.Command, what subject, why string) bool {
	if c.Result == "" {
		other := o.standing[what]
		if other == nil && c.Kind == daemon.CommandCordon {
			other = o.standing[subject{kind: daemon.CommandDrain, node: what.node}]
		}
		if other != nil {
			why = fmt.Sprintf("command %s (%s%s) is in force already", other.ID, other.Kind, by(other))
		}
		if why != "" {
			o.refuse(c, why)
			return false
		}
	}
	o.standing[what] = c
	if c.Kind != daemon.CommandDrain && c.Result != daemon.ResultInForce {
		o.answers = append(o.answers, Answer{ID: c.ID, Result: daemon.ResultInForce})
	}
	return true
}

// lift ends the standing commands about the subjects. If there is none, the command is refused.
func (o *orders) lift(c *daemon.Command, none string, subjects ...subject) bool {
	found := false
	for _, what := range subjects {
		if old := o.standing[what]; old != nil {
			found = true
			delete(o.standing, what)
			o.answers = slices.DeleteFunc(o.answers, func(a Answer) bool { return a.ID == old.ID })
			o.end(old, daemon.ResultLifted, "by command "+c.ID+by(c))
		}
	}
	if !found {
		o.refuse(c, none)
		return false
	}
	o.end(c, daemon.ResultDone, "")
	return true
}

// forget ends every standing command that keeps the name of a node that is gone.
func (o *orders) forget(c *daemon.Command, name string) {
	for i := range o.in.Nodes {
		if n := &o.in.Nodes[i]; n.present() && n.Member.Name == name {
			o.refuse(c, fmt.Sprintf("%s is %s: stop it, or wait until it was removed", name, n.State))
			return
		}
	}
	lifted := false // then the name is known, also if the node's row is gone
	for what, old := range o.standing {
		switch {
		case what.node == name:
		case what.kind == daemon.CommandPin && o.pins[what.unit()] == name:
			delete(o.pins, what.unit())
		default:
			continue
		}
		lifted = true
		delete(o.standing, what)
		o.answers = slices.DeleteFunc(o.answers, func(a Answer) bool { return a.ID == old.ID })
		o.end(old, daemon.ResultLifted, "by command "+c.ID+by(c))
	}
	if why := o.nodeObstacle(name); !lifted && why != "" {
		o.refuse(c, why)
		return
	}
	o.end(c, daemon.ResultDone, "")
}

func (s subject) unit() daemon.Unit { return daemon.Unit{Daemon: s.daemon, Index: s.index, Key: s.key} }

// readMove decides how far a move or restart has come. Its generation is that of the run that it ends. The unit gets a
// higher one when it is assigned again, so a move never ends a second run.
func (o *orders) readMove(c *daemon.Command) {
	args, _ := c.Arguments() // read has decoded them before
	u, restart := args.Unit(), c.Kind == daemon.CommandRestart
	row := o.rows[u]
	why := o.unknownUnit(args)
	if why == "" && row == nil {
		why = u.String() + " was not assigned yet"
	}
	switch {
	case why != "":
		o.refuse(c, why)
	case c.Result == "" && row.Generation != args.Generation || row.Generation < args.Generation:
		o.end(c, daemon.ResultConflict, fmt.Sprintf("expected generation %d of %s, it is %d", args.Generation, u, row.Generation))
	case row.Generation > args.Generation:
		o.followMove(c, row, args.To, restart)
	case o.moves[u].rule != "":
		o.refuse(c, fmt.Sprintf("another command moves or restarts %s", u))
	default:
		if why = o.moveObstacle(c, row, args.To, restart); why != "" {
			o.refuse(c, why)
			return
		}
		m := move{to: args.To, rule: MoveRequested}
		if restart {
			m = move{to: row.Holder.Name, rule: RestartRequested}
		}
		o.moves[u] = m
		o.underWay(c)
	}
}

// underWay marks a move, restart or rebalance as accepted.
func (o *orders) underWay(c *daemon.Command) {
	if c.Result != daemon.ResultInForce {
		o.answers = append(o.answers, Answer{ID: c.ID, Result: daemon.ResultInForce})
	}
}

// moveObstacle returns what keeps a unit from being moved or restarted now; "" if nothing does.
func (o *orders) moveObstacle(c *daemon.Command, row *daemon.Record, to string, restart bool) string {
	u := row.Unit
	switch pinned := o.pins[u]; {
	case o.paused(u) != nil:
		return fmt.Sprintf("%s is paused: resume it first", u)
	case restart && c.Result == "" && row.State.IsFree():
		return fmt.Sprintf("%s does not run", u)
	case restart:
		return ""
	case pinned != "" && pinned != to:
		return fmt.Sprintf("%s is pinned to %s: unpin it first", u, pinned)
	case !row.State.IsFree() && row.Holder.Name == to:
		return fmt.Sprintf("%s is on %s already", u, to)
	}
	return o.obstacle(u, to)
}

// followMove decides about a move or restart whose unit was assigned again.
func (o *orders) followMove(c *daemon.Command, row *daemon.Record, to string, restart bool) {
	there := restart || row.Holder.Name == to
	switch {
	case !there:
		o.refuse(c, fmt.Sprintf("%s went to %s instead: %s", row.Unit, row.Holder.Name, row.Reason))
	case row.State == daemon.Active:
		o.end(c, daemon.ResultDone, fmt.Sprintf("%s runs on %s", row.Unit, row.Holder.Name))
	case row.State == daemon.Assigning:
		o.moves[row.Unit] = move{to: row.Holder.Name, rule: MoveRequested}
		o.underWay(c)
	default:
		o.refuse(c, fmt.Sprintf("the new run of %s on %s has ended: %s", row.Unit, row.Holder.Name, row.Reason))
	}
}

// resign decides about a request to hand the term over to a node. Requests that name no node are carried out by the
// leader's heartbeats.
func (o *orders) resign(c *daemon.Command, to string) {
	switch t := o.in.Term; {
	case to == "":
	case c.Term == 0:
		o.refuse(c, "it names no term")
	case t.Leader.Name == to:
		o.end(c, daemon.ResultDone, to+" leads")
	case c.Term == t.Number:
		if why := o.leadObstacle(to); why != "" {
			o.refuse(c, why)
			return
		}
		o.underWay(c)
		o.handOver = &HandOver{Actor: c.Actor}
	default:
		o.refuse(c, t.Leader.Name+" leads instead")
	}
}

// drains writes how far each drain has come, and hands over the term of a drained leader.
func (o *orders) drains() {
	for i := range o.in.Commands {
		c := &o.in.Commands[i]
		args, _ := c.Arguments()
		if c.Kind != daemon.CommandDrain || o.standing[subject{kind: c.Kind, node: args.Node}] != c {
			continue
		}
		result := daemon.ResultDrained
		for _, row := range o.rows {
			if !row.State.IsFree() && row.Holder.Name == args.Node {
				result = daemon.ResultInForce
			}
		}
		if t := o.in.Term; t.Held() && t.Leader.Name == args.Node {
			result = daemon.ResultInForce
			if o.successor(args.Node) {
				o.handOver = &HandOver{Actor: c.Actor}
			}
		}
		if c.Result != result {
			o.answers = append(o.answers, Answer{ID: c.ID, Result: result})
		}
	}
}

// successor reports whether another node than the named one can lead.
func (o *orders) successor(name string) bool {
	return slices.ContainsFunc(o.in.Nodes, func(n Node) bool { return n.Member.Name != name && o.leadObstacle(n.Member.Name) == "" })
}

// leadObstacle returns what keeps the named node from leading; "" if nothing does.
func (o *orders) leadObstacle(name string) string {
	n, why := o.live(name)
	switch {
	case why != "":
		return why
	case n.Member.NeverLead:
		return name + " never leads (node.never_lead)"
	case o.standing[subject{kind: daemon.CommandDrain, node: name}] != nil:
		return name + " is being drained"
	}
	return ""
}

// refuse ends a command that cannot be carried out.
func (o *orders) refuse(c *daemon.Command, why string) { o.end(c, daemon.ResultRefused, why) }

func (o *orders) end(c *daemon.Command, word, why string) {
	if why != "" {
		word += ": " + why
	}
	o.answers = append(o.answers, Answer{ID: c.ID, Result: word, Done: true})
}

// by names a command's actor for a sentence.
func by(c *daemon.Command) string {
	if c.Actor == "" {
		return ""
	}
	return " by " + c.Actor
}

// nodeObstacle returns why no standing command can be about a node of that name; "" if one can.
func (o *orders) nodeObstacle(name string) string {
	rows, live := 0, 0
	for i := range o.in.Nodes {
		if n := &o.in.Nodes[i]; n.Member.Name == name {
			rows++
			if n.present() && n.State == node.Live {
				live++
			}
		}
	}
	switch {
	case rows == 0:
		return fmt.Sprintf("no node is named %q", name)
	case live > 1:
		return fmt.Sprintf("%d live nodes are named %q", live, name)
	}
	return ""
}

// live returns the one live node of that name, or why there is none.
func (o *orders) live(name string) (*Node, string) {
	var found *Node
	if why := o.nodeObstacle(name); why != "" {
		return nil, why
	}
	for i := range o.in.Nodes {
		if n := &o.in.Nodes[i]; n.Member.Name == name && (found == nil || n.State == node.Live) {
			found = n
		}
	}
	if !found.present() || found.State != node.Live {
		return nil, fmt.Sprintf("%s is %s", name, found.State)
	}
	return found, ""
}

// obstacle returns why the named node cannot take the unit now; "" if it can.
func (o *orders) obstacle(u daemon.Unit, name string) string {
	n, why := o.live(name)
	if why != "" {
		return why
	}
	at, ok := find(o.union.inForce, u.Daemon)
	if !ok {
		return fmt.Sprintf("no node advertises %s", u.Daemon)
	}
	spec := o.union.inForce[at].spec.WithDefaults()
	runs := n.Advert != nil && slices.Contains(n.Advert.Kinds, spec.Kind)
	row := o.rows[u]
	if row == nil {
		row = &daemon.Record{Unit: u}
	}
	if text := o.exclusion(o.filter(n, &spec, runs), n, &spec, row, o.heldWithout(n, u)); text != "" {
		return fmt.Sprintf("%s cannot take %s: %s", name, u, text)
	}
	return ""
}

// heldWithout returns the weight of the units that the node holds, without the one unit.
func (o *orders) heldWithout(n *Node, without daemon.Unit) int64 {
	if n.Member.MaxWeight == 0 {
		return 0
	}
	sum := int64(0)
	for i := range o.in.Units {
		row := &o.in.Units[i]
		if row.Unit == without || !row.State.Known() || !row.HeldBy(n.Member.Incarnation) {
			continue
		}
		weight := 1
		if at, ok := find(o.union.inForce, row.Unit.Daemon); ok {
			weight = cmp.Or(o.union.inForce[at].spec.Weight, 1)
		}
		sum += int64(weight)
	}
	return sum
}

// unknownUnit returns why the arguments name no unit or daemon of the cluster; "" if they do.
func (o *orders) unknownUnit(args daemon.CommandArgs) string {
	at, advertised := find(o.union.inForce, args.Daemon)
	u := args.Unit()
	row := o.rows[u]
	switch {
	case u.IsZero() && advertised, row != nil && !row.Retired:
		return ""
	case !u.IsZero() && u.Key == "" && advertised && u.Index >= 0 && u.Index < instancesOf(o.union.inForce[at].spec):
		return ""
	case u.IsZero():
		return fmt.Sprintf("no node advertises a daemon %q", args.Daemon)
	}
	return fmt.Sprintf("there is no unit %s", u)
}

// notPaused returns why a unit or daemon cannot be resumed.
func (o *orders) notPaused(args daemon.CommandArgs) string {
	switch {
	case args.Unit().IsZero():
		return fmt.Sprintf("%s is not paused", args.Daemon)
	case o.paused(args.Unit()) != nil:
		return fmt.Sprintf("the whole daemon %s is paused: resume it instead", args.Daemon)
	}
	return fmt.Sprintf("%s is not paused", args.Unit())
}

// paused returns the command that pauses the unit or its daemon, or nil.
func (o *orders) paused(u daemon.Unit) *daemon.Command {
	if c := o.standing[subject{kind: daemon.CommandPause, daemon: u.Daemon, index: u.Index, key: u.Key}]; c != nil {
		return c
	}
	return o.standing[subject{kind: daemon.CommandPause, daemon: u.Daemon, index: wholeDaemon}]
}

// cordoned reports whether a node of that name may be given no units.
func (o *orders) cordoned(name string) bool {
	return len(o.standing) > 0 &&
		(o.standing[subject{kind: daemon.CommandCordon, node: name}] != nil || o.drained(name) != nil)
}

// drained returns the command that drains nodes of that name, or nil.
func (o *orders) drained(name string) *daemon.Command {
	return o.standing[subject{kind: daemon.CommandDrain, node: name}]
}

// keeps reports whether a round to make loads even leaves the unit where it is: it is pinned, or its node is cordoned.
func (o *orders) keeps(row *daemon.Record) bool {
	return o.pins[row.Unit] != "" || o.cordoned(row.Holder.Name)
}

// inForce returns the standing commands that are in force, in the order of their submission.
func (o *orders) inForce() []daemon.Command {
	var out []daemon.Command
	for i := range o.in.Commands {
		for _, c := range o.standing {
			if c == &o.in.Commands[i] {
				out = append(out, *c)
			}
		}
	}
	return out
}

// cordonedBy says who cordoned the node, and why.
func (o *orders) cordonedBy(name string) string {
	c := o.standing[subject{kind: daemon.CommandCordon, node: name}]
	if c == nil {
		c = o.drained(name)
	}
	text := by(c)
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	return text
}

// leaves returns why commands take the unit from its holder; "" if they do not.
func (o *orders) leaves(row *daemon.Record) (Why, bool) {
	if len(o.standing) == 0 && len(o.moves) == 0 {
		return Why{}, false
	}
	if c := o.paused(row.Unit); c != nil {
		return Why{Rule: PauseRequested, Note: row.Unit.String() + by(c)}, true
	}
	if m, ok := o.moves[row.Unit]; ok && (m.rule == RestartRequested || m.to != row.Holder.Name) {
		return Why{Rule: m.rule, Note: "to " + m.to}, true
	}
	if to := o.pins[row.Unit]; to != "" && to != row.Holder.Name && o.moves[row.Unit].to == "" && o.obstacle(row.Unit, to) == "" {
		return Why{Rule: Pinned, Note: "to " + to}, true
	}
	return Why{}, false
}

// preferred returns the candidate that commands choose for the unit; nil if they choose none.
func (o *orders) preferred(j *daemonPlacement, u daemon.Unit, barred []*candidate) (*candidate, Rule) {
	to, rule := o.pins[u], Pinned
	if m, ok := o.moves[u]; ok {
		to, rule = m.to, m.rule
	}
	if to == "" {
		return nil, ""
	}
	for _, s := range j.floor.order {
		if j.spots[s.index].zone != nil && s.Member.Name == to && !s.full(j.floor.weight) && !slices.Contains(barred, s) {
			return s, rule
		}
	}
	return nil, ""
}
