package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/emitd/emitd/e2e/stored"
	"github.com/emitd/emitd/internal/testproc"
)

// scene is a cluster of three nodes: one leads and leaves, one is killed while another leads, and that one is
// killed at the end, so that the store shows a leader and what it was doing.
type scene struct {
	kind     stored.Kind
	place    *place
	programs string // the folder of the binaries
	work     string
	hook     *httptest.Server
	nodes    map[string]*testproc.Process
	facts    stored.Facts
}

func newScene(kind stored.Kind, p *place, programs, work string) (*scene, error) {
	s := &scene{kind: kind, place: p, programs: programs, work: work, nodes: map[string]*testproc.Process{}}
	s.facts.Commands = map[string]json.RawMessage{}
	s.hook = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte("refuse")) {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	config := kind.Config(s.hook.URL)
	retired := strings.Replace(config, "  exec:\n", "  exec:\n    - {id: \"acme:retired\", command: [sleep, \"100000\"]}\n", 1)
	leaving := "node: {name: gone, labels: {zone: a}}\n" + retired
	killed := "node: {name: killed, capacity: 2, never_lead: true}\n" + config
	stays := "node: {name: stays}\n" + config
	for name, text := range map[string]string{"gone": leaving, "killed": killed, "stays": stays} {
		if err := os.WriteFile(filepath.Join(work, name+".yaml"), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// end kills what is left.
func (s *scene) end() {
	for name := range s.nodes {
		_ = s.stop(name, syscall.SIGKILL)
	}
	s.hook.Close()
}

// play runs the whole scene.
func (s *scene) play() error {
	steps := []func() error{
		func() error { return s.start("gone") },
		func() error {
			return s.until("gone runs the daemon that nobody else has", s.unit("acme:retired/0", "active"))
		},
		s.fillQueue,
		func() error { return errors.Join(s.start("killed"), s.start("stays")) },
		func() error { return s.until("three nodes", s.outputHas(`"state": "live"`, 3, "node", "ls")) },
		func() error {
			return s.do("leader", "resign", "--actor", "ada", "--reason", "moving on", "--cooldown", "1h", "--yes")
		},
		func() error { return s.until("stays leads", s.outputHas(`"node": "stays"`, 1, "leader", "show")) },
		func() error { return s.stop("gone", syscall.SIGTERM) },
		func() error { return s.stop("killed", syscall.SIGKILL) },
		func() error {
			return s.until("killed is dead", s.outputHas(`"state": "removed"`, 2, "node", "ls", "--all"))
		},
		func() error { return s.until("a unit is active", s.unit("acme:steady/0", "active")) },
		func() error { return s.until("a unit is active", s.unit("acme:steady/1", "active")) },
		func() error { return s.until("a unit is deleted", s.unit("acme:retired/0", "deleted")) },
		s.fillOutbox,
		s.useQueue,
		func() error { return s.until("a unit was given back", s.outputHas("1 embargoed", 1, "daemon", "ls")) },
		func() error { return s.stop("stays", syscall.SIGKILL) },
		s.afterwards,
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// fillOutbox publishes messages that end in each way that there is: delivered, held, behind and dead.
func (s *scene) fillOutbox() error {
	if s.kind == stored.Bucket {
		return nil
	}
	err := s.until("relays run", s.outputHas(`"shards": "0-63"`, 2, "outbox", "stats"))
	for _, message := range [][]string{{`{"order": 1}`, "ada"}, {`refuse this`, "bob"}, {`{"order": 3}`, "bob"}} {
		err = errors.Join(err, s.do("outbox", "publish", "orders.placed", message[0], "--key", message[1], "--type", "order", "--header", "lang=de"))
	}
	return errors.Join(err,
		s.until("one message is held and one is behind it", s.outputHas(`"seq"`, 2, "outbox", "ls", "holds")),
		s.until("one message is dead", s.outputHas(`"seq"`, 1, "outbox", "ls", "skips", "--kind", "dead")),
		s.until("the rest is delivered", s.outputHas(`"pending": 0`, 1, "outbox", "stats", "skips")))
}

// afterwards stores what nobody has looked at yet: pending and delayed messages, and an operator's request.
func (s *scene) afterwards() error {
	_ = s.do("leader", "resign", "--actor", "bob", "--reason", "too late", "--yes", "--timeout", "1s") // nobody answers
	if s.kind == stored.Bucket {
		return nil
	}
	return errors.Join(
		s.do("outbox", "publish", "orders.placed", `{"order": 4}`, "--key", "ada"),
		s.do("outbox", "publish", "orders.placed", `{"order": 5}`, "--key", "eve", "--delay", "1s"),
		s.do("outbox", "publish", "orders.placed", `{"order": 6}`, "--not-before", "2100-01-01T00:00:00Z"))
}

// fillQueue makes so many segments that the node writes a checkpoint when it leaves.
func (s *scene) fillQueue() error {
	if s.kind != stored.Bucket {
		return nil
	}
	err := errors.Join(
		s.until("a broker", s.outputHas(`"queue": "default"`, 1, "queue", "ls")),
		s.do("queue", "declare", "mail", "--claims", "durable", "--max-attempts", "5", "--visibility-timeout", "1h", "--dedup-window", "720h"),
		s.do("queue", "declare", "wide", "--shards", "2"),
		s.until("all brokers", s.outputHas(`"broker": "127`, 3, "queue", "ls")),
		s.do("queue", "bench", "mail", "--clients", "1", "--duration", "3s"),
		s.do("queue", "enqueue", "mail", `{"to": "ada"}`, "--id", "waiting", "--type", "email:send", "--priority", "7"),
		s.do("queue", "enqueue", "mail", strings.Repeat("large ", 5000), "--id", "large", "--type", "email:large"),
		s.do("queue", "enqueue", "mail", "later", "--id", "delayed", "--run-at", "2100-01-01T00:00:00Z"))
	return err
}

// useQueue adds jobs of the other states. Their records are segments behind the checkpoint.
func (s *scene) useQueue() error {
	if s.kind != stored.Bucket {
		return nil
	}
	err := s.until("the brokers have moved", s.outputHas(`"broker": "127`, 3, "queue", "ls"))
	for _, id := range []string{"dead", "done", "failed", "active"} {
		err = errors.Join(err, s.do("queue", "enqueue", "mail", "job "+id, "--id", id, "--type", id, "--max-attempts", "4"))
	}
	err = errors.Join(err,
		s.do("queue", "enqueue", "mail", "once", "--key", "welcome-ada", "--type", "email:send"),
		s.do("queue", "enqueue", "mail", "again", "--id", "waiting"), // a duplicate, which changes nothing
		s.do("queue", "enqueue", "wide", "in a group", "--id", "grouped", "--group", "g"),
		s.enqueueObject())
	for _, end := range [][]string{{"dead", "fail", "--dead", "--cause", "no such address"}, {"done", "complete", "--result", "sent"}, {"failed", "fail", "--cause", "busy", "--retry-after", "1s"}, {"active"}} {
		token, claimed := s.claim(end[0])
		err = errors.Join(err, claimed)
		if len(end) > 1 {
			err = errors.Join(err, s.do(append([]string{"queue", end[1], "mail", end[0], "--token", token}, end[2:]...)...))
		} else {
			s.facts.Token = token
		}
	}
	err = errors.Join(err, s.until("the failed job is due", s.outputHas(`"state": "delayed"`, 1, "queue", "peek", "mail")))
	_, online := s.kind.Reads()
	return errors.Join(err, s.read(online))
}

// enqueueObject adds a job whose payload is too large for the log, and for an argument of a command.
func (s *scene) enqueueObject() error {
	cmd := exec.Command(filepath.Join(s.programs, "emitd"), s.command("queue", "enqueue", "wide", "-", "--type", "object")...)
	cmd.Stdin = strings.NewReader(stored.ObjectPayload + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("enqueue a large payload: %w\n%s", err, out)
	}
	return nil
}

// claim takes the job of a type.
func (s *scene) claim(kind string) (token string, err error) {
	out, err := s.run("emitd", s.command("queue", "claim", "mail", "--type", kind, "--worker", "ada")...)
	if err != nil {
		return "", err
	}
	var jobs []struct{ Token string }
	if err := json.Unmarshal(out, &jobs); err != nil || len(jobs) != 1 {
		return "", fmt.Errorf("claimed %s, %w", out, err)
	}
	return jobs[0].Token, nil
}

// readStores writes down what the release reads in its own stores when no node runs any more.
func (s *scene) readStores() (err error) {
	offline, _ := s.kind.Reads()
	if err := s.read(offline); err != nil {
		return err
	}
	s.facts.Observed, err = s.run("observe", "-locks", s.place.Store)
	return err
}

func (s *scene) read(commands [][]string) error {
	for _, args := range commands {
		out, err := s.run("emitd", s.command(args...)...)
		if err != nil {
			return err
		}
		s.facts.Commands[strings.Join(args, " ")] = out
	}
	return nil
}

// start starts a node.
func (s *scene) start(name string) error {
	log, err := os.Create(filepath.Join(s.work, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := append([]string{"serve", "--config", filepath.Join(s.work, name+".yaml"), "--listen", "127.0.0.1:0"}, s.place.Args...)
	cmd := exec.Command(filepath.Join(s.programs, "emitd"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.nodes[name], err = testproc.Start(cmd)
	return err
}

// stop ends a node and waits for its end.
func (s *scene) stop(name string, how syscall.Signal) error {
	proc := s.nodes[name]
	proc.Signal(how)
	<-proc.Done
	delete(s.nodes, name)
	if how == syscall.SIGKILL {
		return nil
	}
	return proc.Err()
}

// command completes the arguments of a command of emitd.
func (s *scene) command(args ...string) []string {
	return append(append(args, "-o", "json"), s.place.Args...)
}

// do runs a command of emitd whose output does not matter.
func (s *scene) do(args ...string) error {
	_, err := s.run("emitd", s.command(args...)...)
	return err
}

func (s *scene) run(program string, args ...string) ([]byte, error) {
	cmd := exec.Command(filepath.Join(s.programs, program), args...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, problems.Bytes())
	}
	return out, nil
}

// outputHas reports whether the output of a command has a text so often.
func (s *scene) outputHas(text string, times int, args ...string) func() bool {
	return func() bool {
		out, err := s.run("emitd", s.command(args...)...)
		return err == nil && strings.Count(string(out), text) == times
	}
}

// unit reports whether a unit is in a state.
func (s *scene) unit(unit, state string) func() bool {
	return func() bool {
		out, err := s.run("emitd", s.command("daemon", "ls", "--all")...)
		if err != nil {
			return false
		}
		var rows []struct{ Unit, State string }
		if json.Unmarshal(out, &rows) != nil {
			return false
		}
		for _, row := range rows {
			if row.Unit == unit {
				return row.State == state
			}
		}
		return false
	}
}

// until asks again and again, because what it waits for happens in other processes.
func (s *scene) until(what string, is func() bool) error {
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("not within a minute: %s", what)
		}
	}
	return nil
}
