package exec

import (
	"encoding/json"
	"errors"
	"fmt"
)

// instant is a reading, in nanoseconds, of a clock that counts suspend and never steps. All
// processes of a host read the same clock.
type instant int64

// never is later than every reading.
const never = instant(1<<63 - 1)

// The protocol between emitd and its guardian uses one socket and JSON values, one per line. Each
// request gets one answer. Notices (answers with id 0) report what happens to a run in between.
//
//	request   start   the command may run until the deadline; its output goes to the two files sent along
//	request   extend  the run has a new deadline
//	request   signal  send the signal to all processes of the run; SIGKILL to one that has not started: never start it
//	request   ping    are you there?
//	notice    started the command runs: pid and begin say as which process
//	notice    failed  the command could not be started: text says why; the run is forgotten
//	notice    late    the deadline passed before the command ran; the run is forgotten
//	notice    exited  the first process has ended, others of the run have not
//	notice    gone    no process of the run is left; the run is forgotten
//	notice    killed  the deadline has passed, all processes of the run were killed

// verb is what a request asks for.
type verb string

const (
	verbStart  verb = "start"
	verbExtend verb = "extend"
	verbSignal verb = "signal"
	verbPing   verb = "ping"
)

// The signals that emitd may have sent.
const (
	sigKill = 9
	sigTerm = 15
)

// request is what emitd sends to the guardian. A run has the ID of the request that started it.
type request struct {
	Verb     verb     `json:"verb"`
	ID       uint64   `json:"id"`
	Run      uint64   `json:"run,omitempty"`
	Deadline instant  `json:"deadline,omitempty"`
	Signal   int      `json:"signal,omitempty"`
	Command  *program `json:"command,omitempty"`
}

// program is what the guardian needs to start a process. It holds bytes because arguments and paths
// need not be UTF-8.
type program struct {
	Path []byte   `json:"path"`
	Args [][]byte `json:"args"`
	Env  [][]byte `json:"env"`
	Dir  []byte   `json:"dir,omitempty"`
	User *user    `json:"user,omitempty"` // nil = emitd's user
}

// user is the user and groups with whose rights a process runs.
type user struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// status is the kind of an answer or notice.
type status string

const (
	statusOK      status = "ok"
	statusLate    status = "late"    // the deadline has passed: the run was not started, or it was killed
	statusUnknown status = "unknown" // there is no such run
	statusStarted status = "started"
	statusFailed  status = "failed"
	statusExited  status = "exited"
	statusGone    status = "gone"
	statusKilled  status = "killed"
)

// answer is what the guardian sends to emitd.
type answer struct {
	ID     uint64 `json:"id,omitempty"` // 0 = a notice
	Run    uint64 `json:"run,omitempty"`
	Status status `json:"status"`
	Text   string `json:"text,omitempty"`
	// PID and Begin identify the process that was started: its number, and when it began in the
	// kernel's own unit.
	PID   int    `json:"pid,omitempty"`
	Begin string `json:"begin,omitempty"`
	// Wait is the wait status of the first process. Strays is how many processes of a run that is
	// gone had left its process group.
	Wait   int `json:"wait,omitempty"`
	Strays int `json:"strays,omitempty"`
}

// maxLine bounds a line of the protocol. The kernel accepts 2 MiB of arguments and environment.
const maxLine = 8 << 20

// line returns a request as it is sent.
func line(v request) ([]byte, error) {
	text, err := json.Marshal(v)
	if err == nil && len(text) >= maxLine {
		err = errors.New("arguments and environment are too large")
	}
	return append(text, '\n'), err
}

func (a answer) line() []byte {
	text, _ := json.Marshal(a) // cannot fail: strings and numbers only
	return append(text, '\n')
}

// parseRequest parses a line without its end.
func parseRequest(text []byte) (request, error) {
	var r request
	if err := json.Unmarshal(text, &r); err != nil {
		return request{}, fmt.Errorf("malformed request: %w", err)
	}
	switch {
	case r.ID == 0,
		r.Verb == verbStart && (r.Command == nil || len(r.Command.Path) == 0 || len(r.Command.Args) == 0),
		r.Verb != verbStart && r.Verb != verbPing && (r.Run == 0 || r.Verb != verbExtend && r.Verb != verbSignal),
		r.Verb == verbSignal && r.Signal != sigTerm && r.Signal != sigKill:
		return request{}, fmt.Errorf("malformed request: %s", r.Verb)
	}
	return r, nil
}
