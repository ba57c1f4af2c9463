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
	{"commands of other kinds wait as they are", 0, filesOther},
}

func files(w *world) {
	l, peers := w.cluster(1)
	before := w.look()
	want := storage.Command{
		ID: uuid(4, 1), Kind: storage.CommandResign, Actor: hostile[0], Reason: hostile[1],
		Term: l.term.Number, Cooldown: 90 * time.Second, Args: json.RawMessage(`{"a":[1,2]}`),
	}
	got, err := w.Store.Submit(w.ctx, want)
	w.ok(err)
	w.within("created_at", got.CreatedAt, before.Now, w.look().Now)
	want.CreatedAt = got.CreatedAt
	w.equal("command", *got, want)
	for _, p := range []*peer{l.peer, peers[0]} {
		w.equal("commands that wait", p.beat().Commands, []storage.Command{want})
	}
	second, err := w.Second.Submit(w.ctx, storage.Command{ID: uuid(4, 2), Kind: storage.CommandResign})
	w.ok(err)
	w.equal("commands, oldest first", l.beat().Commands, []storage.Command{want, *second})

	e := w.history(before.Head)
	w.equal("events", len(e), 2)
	w.equal("event", e[0], daemon.Event{
		Seq: before.Head + 1, At: e[0].At, Kind: daemon.OperatorResign, Term: l.term.Number, Reason: hostile[1],
		Detail: mustJSON(map[string]string{"command": want.ID, "actor": hostile[0]}),
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
	first, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: storage.CommandResign, Actor: "alice"})
	w.ok(err)
	w.unchanged(func() {
		again, err := w.Second.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: storage.CommandResign, Actor: "bob", Term: 1, Reason: "other"})
		w.ok(err)
		w.equal("command", *again, *first)
	})
	l.leave(storage.Leave{Resign: l.term.Number, Command: first.ID})
	again, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: storage.CommandResign})
	w.ok(err)
	w.equal("result", again.Result, "done")
	w.equal("done", again.DoneAt.IsZero(), false)
	w.equal("commands that wait", len(l.beat().Commands), 0)
}

func refusesOtherTerm(w *world) {
	l, _ := w.cluster(0)
	head := w.look().Head
	for i, n := range []int64{l.term.Number - 1, l.term.Number + 1} {
		c, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, i), Kind: storage.CommandResign, Term: n})
		w.ok(err)
		w.holds(strings.HasPrefix(c.Result, "conflict: "), "result is %q", c.Result)
		w.holds(c.DoneAt.Equal(c.CreatedAt), "done at %v, created at %v", c.DoneAt, c.CreatedAt)
	}
	w.equal("commands that wait", len(l.beat().Commands), 0)
	w.equal("held", w.look().Term.Held(), true)
	w.equal("events", len(w.history(head)), 2)
}

func fulfils(w *world) {
	l, peers := w.cluster(1)
	for i := range 2 {
		_, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, i), Kind: storage.CommandResign})
		w.ok(err)
	}
	before := w.look().Now
	l.leave(storage.Leave{Resign: l.term.Number, Command: uuid(4, 0), Actor: "alice", Reason: node.Resigned})
	waiting := peers[0].beat().Commands
	w.equal("commands that wait", len(waiting), 1)
	w.equal("the one that waits", waiting[0].ID, uuid(4, 1))
	c, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 0), Kind: storage.CommandResign})
	w.ok(err)
	w.equal("result", c.Result, "done")
	w.within("done_at", c.DoneAt, before, w.look().Now)
	l.leave(storage.Leave{Command: uuid(4, 0)})
	l.leave(storage.Leave{Command: uuid(4, 77)})
	again, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 0), Kind: storage.CommandResign})
	w.ok(err)
	w.equal("command", again, c)
}

func fulfilsTooLate(w *world) {
	l, peers := w.cluster(1)
	c, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: storage.CommandResign, Term: l.term.Number})
	w.ok(err)
	w.equal("waits", c.DoneAt.IsZero(), true)
	next := peers[0].replaceLeader(l.term)
	// The new leader answers a command for a term that is over, and goes on leading.
	peers[0].leave(storage.Leave{Command: c.ID})
	c, err = w.Store.Submit(w.ctx, storage.Command{ID: c.ID, Kind: storage.CommandResign})
	w.ok(err)
	w.holds(strings.HasPrefix(c.Result, "conflict: "), "result is %q", c.Result)
	w.equal("term", w.look().Term, next)
	w.equal("commands that wait", len(peers[0].beat().Commands), 0)
}

func filesOther(w *world) {
	p := w.join("node-a")
	head := w.look().Head
	c, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: "node.cordon", Term: 5, Args: json.RawMessage(`{"node":"x"}`)})
	w.ok(err)
	w.equal("done", c.DoneAt.IsZero(), true)
	w.equal("commands that wait", p.beat().Commands, []storage.Command{*c})
	w.equal("head", w.look().Head, head)
}
