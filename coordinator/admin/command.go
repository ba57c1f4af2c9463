package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/coordinator/operator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/audit"
	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// commandOperations lists the calls for operators' commands.
func commandOperations() []operation {
	return []operation{
		get("listCommands", "/commands", "The open commands, the oldest first: what operators have ordered, and what is not carried out yet", (*API).commands),
		call("doCommand", http.MethodPost, "/commands", "Give an operator's command, or show what it would move", (*API).command),
	}
}

type commandsIn struct{ paging }

// commandPage is a page of open commands.
type commandPage struct {
	At       view.Time        `json:"at"` // the store's clock
	Commands []daemon.Command `json:"commands"`
	Cursor   *string          `json:"cursor"` // of the next page; null at the end
}

// commandKey is by what commands are sorted.
type commandKey struct {
	CreatedAt time.Time `json:"c"`
	ID        string    `json:"i"`
}

func (k commandKey) compare(l commandKey) int {
	return cmp.Or(k.CreatedAt.Compare(l.CreatedAt), cmp.Compare(k.ID, l.ID))
}

func (a *API) commands(ctx context.Context, in *commandsIn) (*commandPage, error) {
	s, err := a.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	key := func(c *daemon.Command) commandKey { return commandKey{c.CreatedAt, c.ID} }
	all := slices.SortedFunc(slices.Values(s.snap.Commands), func(a, b daemon.Command) int { return key(&a).compare(key(&b)) })
	out := &commandPage{At: view.Time{Time: s.snap.Now}}
	out.Commands, out.Cursor, err = page(all, in.paging, "commands", key, commandKey.compare)
	return out, err
}

// given is a command, and who gives it.
type given struct {
	body.CommandRequest
	by audit.By // who makes the call
}

type commandIn struct {
	// Key makes a repetition harmless: calls with the same key give one command. It becomes the command's ID. Without a
	// key, each call is a command of its own. It has 1 to 64 letters, digits and ._:-, and may be in quotes.
	Key string `header:"Idempotency-Key"`
	// Wait is how long the call waits until the command is carried out. Then, or after that, it is answered.
	Wait time.Duration       `query:"wait" default:"10s" max:"60s"`
	Body body.CommandRequest `body:"json"`

	by audit.By
}

// from sets who makes the call.
func (in *commandIn) from(a *API, r *http.Request) {
	if a.cfg.Actor != nil {
		in.Body.Actor = cmp.Or(a.cfg.Actor(r), in.Body.Actor)
	}
	in.Body.Actor, in.by = cmp.Or(in.Body.Actor, "api"), a.by(r)
}

// validKey is the form of an Idempotency-Key.
var validKey = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

func (a *API) command(ctx context.Context, in *commandIn) (*body.CommandAnswer, error) {
	key := strings.Trim(in.Key, `"`)
	if in.Key != "" && !validKey.MatchString(key) {
		return nil, badCall("Idempotency-Key is %.100q, want 1 to 64 letters, digits and ._:-", in.Key)
	}
	ops := operator.Client{Store: a.cfg.Store}
	answer, err := a.submit(ctx, &ops, given{in.Body, in.by}, key)
	if err != nil || in.Body.DryRun {
		return answer, err
	}
	defer a.reads.forget()
	if in.Wait > 0 && !settled(*answer.Command) {
		ctx, cancel := context.WithTimeout(ctx, in.Wait)
		defer cancel()
		done, err := ops.Do(ctx, *answer.Command)
		if pending := (*operator.PendingError)(nil); errors.As(err, &pending) {
			return answer, nil // it is known to be stored
		}
		if err != nil {
			return nil, fault.FromCommand(err, a.fault)
		}
		answer.Command = &done
	}
	switch answer.Command.Outcome() {
	case daemon.ResultConflict, daemon.ResultRefused:
		return nil, fault.FromCommand(&operator.RefusedError{Command: *answer.Command}, a.fault)
	}
	answer.Done = settled(*answer.Command)
	return answer, nil
}

// settled reports whether a command is done or, if it is a standing one, in force.
func settled(c daemon.Command) bool { return !c.DoneAt.IsZero() || c.Kind.Stands() && c.Result != "" }

// submit stores the command, or says what it would move.
func (a *API) submit(ctx context.Context, ops *operator.Client, o given, key string) (*body.CommandAnswer, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	snap, err := a.cfg.Store.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the cluster: %w", err)
	}
	c, err := o.command(snap)
	if err != nil {
		return a.repeated(ctx, o, key, err)
	}
	if o.DryRun || key == "" { // a repetition of a command that is done would be refused here
		moves, err := ops.Preview(ctx, c)
		if err != nil {
			return nil, fault.FromCommand(err, a.fault)
		}
		if o.DryRun {
			return &body.CommandAnswer{Moves: append([]operator.Move{}, moves...)}, nil
		}
		id, err := uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("generate an ID: %w", err)
		}
		key = id.String()
	}
	c.ID, c.CreatedAt = key, snap.Now
	a.reads.forget()
	stored, err := a.cfg.Store.Submit(ctx, c)
	switch {
	case err == nil:
	case errors.Is(err, storage.ErrUnavailable), ctx.Err() != nil:
		return nil, fault.FromCommand(&operator.PendingError{Command: c, Err: err}, a.fault)
	default:
		return nil, fmt.Errorf("store the command: %w", err)
	}
	return o.answer(c, stored)
}

// repeated answers a command that is not possible now. If it is one that was given before under the same key, the answer
// is what became of that one: the leader that it has resigned, or the node that it was about, may be gone by now.
func (a *API) repeated(ctx context.Context, o given, key string, why error) (*body.CommandAnswer, error) {
	if key == "" || o.DryRun {
		return nil, why
	}
	known, err := a.commandOf(ctx, key, o.Kind)
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, why
	}
	// Submitting a command that is stored returns it. No term has this number, so nothing would be done if it was not.
	stored, err := a.cfg.Store.Submit(ctx, daemon.Command{ID: key, Kind: o.Kind, Term: -1})
	if err != nil {
		return nil, fmt.Errorf("read the command: %w", err)
	}
	c, args := o.asGiven()
	c.Args = args.Encode()
	return o.answer(c, stored)
}

// commandOf reports whether the recent history has a command with this ID.
func (a *API) commandOf(ctx context.Context, id string, kind daemon.CommandKind) (bool, error) {
	s := search{store: a.cfg.Store, filter: view.EventFilter{Kind: string(kind.Event())}, limit: mostSearched, block: eventsAtOnce}
	if _, err := s.backward(ctx, 0, false); err != nil {
		return false, fmt.Errorf("read events: %w", err)
	}
	return slices.ContainsFunc(s.found, func(e view.Event) bool {
		var d struct {
			Command string `json:"command"`
		}
		return json.Unmarshal(e.Detail, &d) == nil && d.Command == id
	}), nil
}

// asGiven returns the command and its arguments without anything that the caller has left out.
func (o given) asGiven() (daemon.Command, daemon.CommandArgs) {
	c := daemon.Command{Kind: o.Kind, Actor: o.Actor, Reason: o.Reason, Term: o.Term, Cooldown: time.Duration(o.CooldownMS) * time.Millisecond}
	args := daemon.CommandArgs{Node: o.Node, Daemon: o.Daemon, To: o.To, Generation: o.Generation}
	if !o.Unit.IsZero() {
		args.SetUnit(o.Unit)
	}
	return c, args
}

// command returns the command. Unknown names are refused before anything is stored. An expectation that is left out is
// what the caller would see now.
func (o given) command(snap *daemon.Snapshot) (daemon.Command, error) {
	c, args := o.asGiven()
	if err := o.check(snap); err != nil {
		return c, err
	}
	if args.Generation == 0 && (o.Kind == daemon.CommandMove || o.Kind == daemon.CommandRestart) {
		for i := range snap.Units {
			if snap.Units[i].Unit == o.Unit {
				args.Generation = snap.Units[i].Generation
			}
		}
	}
	if ofLeader(o.Kind) && c.Term == 0 {
		c.Term = snap.Term.Number
	}
	args.Before = plan.Before(snap, o.Kind, args)
	args.Role, args.Address = o.by.Role, o.by.Address
	c.Args = args.Encode()
	return c, nil
}

// ofLeader reports whether a command is for the present leader and for no other.
func ofLeader(kind daemon.CommandKind) bool {
	return kind == daemon.CommandResign || kind == daemon.CommandRelease
}

// answer returns the stored command, unless another command was given under its ID.
func (o given) answer(c daemon.Command, stored *daemon.Command) (*body.CommandAnswer, error) {
	if !o.gave(c, *stored) {
		return nil, refused(http.StatusUnprocessableEntity, "the Idempotency-Key %q was used for another command (%s)", stored.ID, stored.Kind)
	}
	return &body.CommandAnswer{Command: stored, Moves: []operator.Move{}}, nil
}

// gave reports whether the stored command is the one that was given. Expectations that the caller has left out do not
// count: they were what was true when the command was given first.
func (o given) gave(c, stored daemon.Command) bool {
	given, err := c.Arguments()
	had, err2 := stored.Arguments()
	if err != nil || err2 != nil {
		return false
	}
	if o.Generation == 0 {
		given.Generation = had.Generation
	}
	for _, args := range []*daemon.CommandArgs{&given, &had} { // these are for the history, and a repetition may have others
		args.Role, args.Address, args.Before = "", "", ""
	}
	return c.Kind == stored.Kind && c.Actor == stored.Actor && c.Reason == stored.Reason && c.Cooldown == stored.Cooldown &&
		(o.Term == 0 || o.Term == stored.Term) && reflect.DeepEqual(given, had)
}

// wants says which fields a kind of command needs.
type wants struct{ node, daemon, unit, to, mayTo, generation, cooldown bool }

// kinds lists the kinds of command with their fields.
var kinds = map[daemon.CommandKind]wants{
	daemon.CommandResign:    {mayTo: true, cooldown: true},
	daemon.CommandRelease:   {},
	daemon.CommandRebalance: {},
	daemon.CommandCordon:    {node: true},
	daemon.CommandUncordon:  {node: true},
	daemon.CommandDrain:     {node: true},
	daemon.CommandForget:    {node: true},
	daemon.CommandPause:     {daemon: true},
	daemon.CommandResume:    {daemon: true},
	daemon.CommandRestart:   {unit: true, generation: true},
	daemon.CommandMove:      {unit: true, to: true, generation: true},
	daemon.CommandPin:       {unit: true, to: true},
	daemon.CommandUnpin:     {unit: true},
}

// check refuses a command with fields that are missing or have no effect, and one about something unknown.
func (o given) check(snap *daemon.Snapshot) error {
	want, ok := kinds[o.Kind]
	if !ok {
		return badCall("kind is %.100q, want one of %s", string(o.Kind), kindNames())
	}
	for _, f := range []struct {
		name                string
		given, needed, used bool
	}{
		{"node", o.Node != "", want.node, want.node},
		{"daemon", o.Daemon != "", want.daemon && o.Unit.IsZero(), want.daemon && o.Unit.IsZero()},
		{"unit", !o.Unit.IsZero(), want.unit, want.unit || want.daemon},
		{"to", o.To != "", want.to, want.to || want.mayTo},
		{"generation", o.Generation != 0, false, want.generation},
		{"cooldown_ms", o.CooldownMS != 0, false, want.cooldown},
	} {
		switch {
		case f.given && !f.used:
			return badCall("%s has no %s", o.Kind, f.name)
		case f.needed && !f.given:
			return badCall("%s needs %s", o.Kind, f.name)
		}
	}
	if o.CooldownMS < 0 || o.Term < 0 || o.Generation < 0 {
		return badCall("cooldown_ms, term and generation are at least 0")
	}
	return o.known(snap)
}

// known refuses names that the cluster does not know.
func (o given) known(snap *daemon.Snapshot) error {
	for _, name := range []string{o.Node, o.To} {
		if name != "" && !slices.ContainsFunc(snap.Nodes, func(m node.Member) bool { return m.Name == name }) && !o.lifts(snap, name) {
			return fault.New(fault.NoNode, "there is no node %.200q", name)
		}
	}
	has := func(is func(u daemon.Unit) bool) bool {
		return slices.ContainsFunc(snap.Units, func(r daemon.Record) bool { return is(r.Unit) })
	}
	switch {
	case !o.Unit.IsZero() && !has(func(u daemon.Unit) bool { return u == o.Unit }):
		return fault.New(fault.NoDaemon, "there is no unit %.200q", o.Unit.String())
	case o.Daemon != "" && !has(func(u daemon.Unit) bool { return u.Daemon == o.Daemon }):
		return fault.New(fault.NoDaemon, "there is no daemon %.200q", string(o.Daemon))
	case ofLeader(o.Kind) && !snap.Term.Held():
		return fault.New(fault.NoLeader, "the cluster has no leader")
	}
	return nil
}

// lifts reports whether the command may end a standing one that has the node's name. What is in force outlives the node's
// row.
func (o given) lifts(snap *daemon.Snapshot, name string) bool {
	if o.Kind != daemon.CommandUncordon && o.Kind != daemon.CommandForget {
		return false
	}
	return slices.ContainsFunc(snap.Commands, func(c daemon.Command) bool {
		args, err := c.Arguments()
		return err == nil && c.Kind.Stands() && (args.Node == name || args.To == name)
	})
}

func kindNames() string {
	var names []string
	for k := range kinds {
		names = append(names, string(k))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
