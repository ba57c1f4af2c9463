package exec

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// instant is a reading of a clock that counts suspend and never steps, in nanoseconds. All
// processes of a host read the same.
type instant int64

// never is later than every reading.
const never = instant(1<<63 - 1)

// The protocol between emitd and its guardian: one line per request on the guardian's standard
// input, one line per answer on its standard output.
//
//	request   verb id pgid start deadline      "-" and 0 where a verb needs none
//	answer    id status
//	notice    0 killed pgid                    a deadline has passed
//
// An answer is always shorter than its request, so that an emitd that does not read cannot
// fill the guardian's output before its input.

// verb is what emitd asks for.
type verb string

const (
	watch  verb = "watch"  // kill the group at the deadline; start is that of its first process
	extend verb = "extend" // the deadline is now another
	forget verb = "forget" // the group is gone
)

// status answers a request.
type status string

const (
	statusOK      status = "ok"
	statusLate    status = "late"    // the deadline has passed: the group was killed
	statusUnknown status = "unknown" // no such group is watched
	statusOther   status = "other"   // the process is not the one that was meant
	statusKilled  status = "killed"  // of a notice
)

// request is one line to the guardian.
type request struct {
	verb     verb
	id       uint64
	pgid     int
	start    string // start time of the group's first process, in the kernel's own unit
	deadline instant
}

// maxLine bounds a line of the protocol.
const maxLine = 256

func (r request) line() string {
	start := r.start
	if start == "" {
		start = "-"
	}
	return fmt.Sprintf("%s %d %d %s %d\n", r.verb, r.id, r.pgid, start, r.deadline)
}

var errLine = errors.New("malformed line")

// parseRequest parses a line without its end.
func parseRequest(line string) (request, error) {
	f := strings.Split(line, " ")
	if len(f) != 5 || len(line) > maxLine {
		return request{}, errLine
	}
	id, err1 := strconv.ParseUint(f[1], 10, 64)
	pgid, err2 := strconv.ParseInt(f[2], 10, 32)
	deadline, err3 := strconv.ParseInt(f[4], 10, 64)
	r := request{verb: verb(f[0]), id: id, pgid: int(pgid), start: f[3], deadline: instant(deadline)}
	switch r.verb {
	case watch, extend, forget:
	default:
		return request{}, errLine
	}
	// Group 0 is the guardian's own to kill(2), and 1 is everything.
	if errors.Join(err1, err2, err3) != nil || id == 0 || pgid <= 1 || r.start == "" {
		return request{}, errLine
	}
	if r.start == "-" {
		r.start = ""
	}
	return r, nil
}

// answer is one line from the guardian.
type answer struct {
	id     uint64 // 0 = a notice
	status status
	pgid   int // of a notice
}

func (a answer) line() string {
	if a.id == 0 {
		return fmt.Sprintf("0 %s %d\n", a.status, a.pgid)
	}
	return fmt.Sprintf("%d %s\n", a.id, a.status)
}

// parseAnswer parses a line without its end.
func parseAnswer(line string) (answer, error) {
	f := strings.Split(line, " ")
	if len(f) < 2 {
		return answer{}, errLine
	}
	id, err := strconv.ParseUint(f[0], 10, 64)
	if err != nil || (id == 0) != (len(f) == 3) || len(f) > 3 {
		return answer{}, errLine
	}
	a := answer{id: id, status: status(f[1])}
	if id == 0 {
		a.pgid, err = strconv.Atoi(f[2])
	}
	if err != nil {
		return answer{}, errLine
	}
	return a, nil
}
