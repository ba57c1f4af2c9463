package storagetest

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

var commandStories = []story{
	{"a command is filed once and waits for its leader", 0, files},
	{"the same ID is the same command", 0, filesOnce},
	{"a command for another term is answered at once", 0, refusesOtherTerm},
	{"a fulfilled command waits no more", 0, fulfils},
	{"a command whose term has passed is answered with a conflict", 0, fulfilsTooLate},
	{"a standing command is open until it is lifted, and makes one event for each result", 0, stands},
	{"a leader that lost its term answers no command", 0, answersUnderItsTerm},
	{"heartbeats bring only the commands on which nodes act", 0, filesOther},
}

func files(w *world) {
	l, peers := w.cluster(1)
	before := w.snapshot()
	want := storage.Command{
		ID: uuid(4, 1), Kind: daemon.CommandResign, Actor: hostile[0], Reason: hostile[1],
		Term: l.term.Number, Cooldown: 90 * time.Second, Args: json.RawMessage(`{"a":[1,2]}`),
	}
	got, err := w.Store.Submit(w.ctx, want)
	w.ok(err)
	w.within("created_at", got.CreatedAt, before.Now, w.snapshot().Now)
	want.CreatedAt = got.CreatedAt
	w.equal("command", *got, want)
	for _, p := range []*peer{l.peer, peers[0]} {
		w.equal("commands that wait", p.beat().Commands, []storage.Command{want})
	}
	second, err := w.Second.Submit(w.ctx, storage.Command{ID: uuid(4, 2), Kind: daemon.CommandResign})
	w.ok(err)
	w.equal("commands, oldest first", l.beat().Commands, []storage.Command{want, *second})

	e := w.history(before.Head)
	w.equal("events", len(e), 2)
	w.equal("event", e[0], daemon.Event{
		Seq: before.Head + 1, At: e[0].At, Kind: daemon.CommandResign.Event(), Term: l.term.Number, Reason: hostile[1],
		Detail: mustJSON(map[string]any{"command": want.ID, "actor": hostile[0], "args": want.Args}),
	})
}

func mustJSON(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

func filesOnce(w *world) {
	l, _ := w.cluster(0)
	first, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: daemon.CommandResign, Actor: "alice"})
	w.ok(err)
	w.unchanged(func() {
		again, err := w.Second.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: daemon.CommandResign, Actor: "bob", Term: 1, Reason: "other"})
		w.ok(err)
		w.equal("command", *again, *first)
	})
	l.leave(storage.Leave{Resign: l.term.Number, Command: first.ID})
	again, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: daemon.CommandResign})
	w.ok(err)
	w.equal("result", again.Result, "done")
	w.equal("done", again.DoneAt.IsZero(), false)
	w.equal("commands that wait", len(l.beat().Commands), 0)
}

func refusesOtherTerm(w *world) {
	l, _ := w.cluster(0)
	head := w.snapshot().Head
	for i, n := range []int64{l.term.Number - 1, l.term.Number + 1} {
		c, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, i), Kind: daemon.CommandResign, Term: n})
		w.ok(err)
		w.holds(strings.HasPrefix(c.Result, "conflict: "), "result is %q", c.Result)
		w.holds(c.DoneAt.Equal(c.CreatedAt), "done at %v, created at %v", c.DoneAt, c.CreatedAt)
	}
	w.equal("commands that wait", len(l.beat().Commands), 0)
	w.equal("held", w.snapshot().Term.Held(), true)
	w.equal("events", len(w.history(head)), 2)
}

func fulfils(w *world) {
	l, peers := w.cluster(1)
	for i := range 2 {
		_, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, i), Kind: daemon.CommandResign})
		w.ok(err)
	}
	before := w.snapshot().Now
	l.leave(storage.Leave{Resign: l.term.Number, Command: uuid(4, 0), Actor: "alice", Reason: node.Resigned})
	waiting := peers[0].beat().Commands
	w.equal("commands that wait", len(waiting), 1)
	w.equal("the one that waits", waiting[0].ID, uuid(4, 1))
	c, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 0), Kind: daemon.CommandResign})
	w.ok(err)
	w.equal("result", c.Result, "done")
	w.within("done_at", c.DoneAt, before, w.snapshot().Now)
	l.leave(storage.Leave{Command: uuid(4, 0)})
	l.leave(storage.Leave{Command: uuid(4, 77)})
	again, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 0), Kind: daemon.CommandResign})
	w.ok(err)
	w.equal("command", again, c)
}

func fulfilsTooLate(w *world) {
	l, peers := w.cluster(1)
	c, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: daemon.CommandResign, Term: l.term.Number})
	w.ok(err)
	w.equal("waits", c.DoneAt.IsZero(), true)
	next := peers[0].replaceLeader(l.term)
	// The new leader answers a command for a term that is over, and goes on leading.
	peers[0].leave(storage.Leave{Command: c.ID})
	c, err = w.Store.Submit(w.ctx, storage.Command{ID: c.ID, Kind: daemon.CommandResign})
	w.ok(err)
	w.holds(strings.HasPrefix(c.Result, "conflict: "), "result is %q", c.Result)
	w.equal("term", w.snapshot().Term, next)
	w.equal("commands that wait", len(peers[0].beat().Commands), 0)
}

func filesOther(w *world) {
	l, _ := w.cluster(0)
	head := w.snapshot().Head
	args := daemon.CommandArgs{Node: "x"}.Encode()
	cordon, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: daemon.CommandCordon, Actor: "alice", Args: args})
	w.ok(err)
	later, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 2), Kind: "some.later-kind", Actor: "alice"})
	w.ok(err)
	w.equal("commands of a heartbeat", len(l.beat().Commands), 0)
	drain, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 3), Kind: daemon.CommandDrain, Args: args})
	w.ok(err)
	w.equal("commands of a heartbeat", l.beat().Commands, []storage.Command{*drain})
	w.equal("open commands", w.snapshot().Commands, []storage.Command{*cordon, *later, *drain})
	var kinds []daemon.EventKind
	for _, e := range w.history(head) {
		kinds = append(kinds, e.Kind)
	}
	w.equal("events", kinds, []daemon.EventKind{"operator.cordon", "operator.later-kind", "operator.drain"})
}

// stands: the row of a cordon follows what the leader writes, until another command ends it.
func stands(w *world) {
	l, _ := w.cluster(0)
	args := daemon.CommandArgs{Node: hostile[0], To: hostile[1]}.Encode()
	c, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: daemon.CommandDrain, Actor: hostile[0], Reason: hostile[1], Args: args})
	w.ok(err)
	head := w.snapshot().Head
	answer := func(results ...storage.CommandResult) {
		_, err := l.via.Commit(w.ctx, storage.Commit{Term: l.term.Ref(), Commands: results})
		w.ok(err)
	}
	inForce := storage.CommandResult{ID: c.ID, Result: daemon.ResultInForce}
	answer(inForce)
	answer(inForce, storage.CommandResult{ID: uuid(4, 77), Result: daemon.ResultDone, Done: true})
	c.Result = daemon.ResultInForce
	w.equal("open commands", w.snapshot().Commands, []storage.Command{*c})
	w.equal("commands of a heartbeat", l.beat().Commands, []storage.Command{*c})
	before := w.snapshot().Now
	lifted := storage.CommandResult{ID: c.ID, Result: daemon.ResultLifted + ": by " + hostile[2], Done: true}
	answer(lifted)
	answer(storage.CommandResult{ID: c.ID, Result: daemon.ResultDone, Done: true})
	w.equal("open commands", len(w.snapshot().Commands), 0)
	w.equal("commands of a heartbeat", len(l.beat().Commands), 0)
	again, err := w.Second.Submit(w.ctx, storage.Command{ID: c.ID, Kind: daemon.CommandDrain})
	w.ok(err)
	w.equal("result", again.Result, lifted.Result)
	w.within("done_at", again.DoneAt, before, w.snapshot().Now)
	e := w.history(head)
	w.equal("events", len(e), 2)
	for i, result := range []string{inForce.Result, lifted.Result} {
		var detail struct {
			Command, Actor, Result string
			Args                   daemon.CommandArgs
		}
		w.ok(json.Unmarshal(e[i].Detail, &detail))
		w.equal("kind", e[i].Kind, daemon.CommandDrain.Event())
		w.equal("reason", e[i].Reason, hostile[1])
		w.equal("detail", []string{detail.Command, detail.Actor, detail.Result, detail.Args.Node}, []string{c.ID, hostile[0], result, hostile[0]})
	}
}

func answersUnderItsTerm(w *world) {
	l, peers := w.cluster(1)
	c, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: daemon.CommandPause})
	w.ok(err)
	peers[0].replaceLeader(l.term)
	w.unchanged(func() {
		_, err := l.via.Commit(w.ctx, storage.Commit{
			Term: l.term.Ref(), Commands: []storage.CommandResult{{ID: c.ID, Result: daemon.ResultDone, Done: true}},
		})
		w.refused(err, storage.ErrTermLost)
	})
	w.equal("open commands", w.snapshot().Commands, []storage.Command{*c})
}
