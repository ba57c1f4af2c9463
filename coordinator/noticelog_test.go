package coordinator

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
)

// Who joins or leaves is not queued for a log that drops it.
func TestMembershipIsQueuedOnlyForALog(t *testing.T) {
	t.Parallel()
	for level, logs := range map[slog.Level]bool{slog.LevelInfo: true, slog.LevelWarn: false} {
		j := newNoticeLog(&Coordinator{log: slog.New(slog.NewTextHandler(&bytes.Buffer{}, &slog.HandlerOptions{Level: level}))})
		for _, kind := range []member.NoticeKind{member.NodeJoined, member.NodeLeft} {
			if got := j.wants(kind); got != logs {
				t.Errorf("%v with a log at %v: queued %v", kind, level, got)
			}
		}
		if !j.wants(member.UnitFailed) {
			t.Errorf("a failure is not queued for a log at %v", level)
		}
	}
}

// TestAfterIsTheOutage: the log line for an answered heartbeat says how long none was answered. If no failure was
// logged it gives no time, in particular not the machine's uptime.
func TestAfterIsTheOutage(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	j := newNoticeLog(&Coordinator{log: slog.New(slog.NewTextHandler(&out, nil))})
	now := lease.Instant(2131505910886) // the machine's clock: 35 minutes after its start
	printed := func(n member.Notice) string {
		out.Reset()
		j.notice(now, n)
		return out.String()
	}
	if text := printed(member.Notice{Kind: member.HeartbeatRecovered}); !strings.Contains(text, "succeeds again") || strings.Contains(text, "after=") {
		t.Errorf("without a failure before: %s", text)
	}
	for range 2 { // the second outage is counted from its own beginning
		printed(member.Notice{Kind: member.HeartbeatFailed, Err: errors.New("refused")})
		now = now.Add(3 * time.Second)
		if text := printed(member.Notice{Kind: member.HeartbeatFailed, Err: errors.New("refused")}); !strings.Contains(text, "for=3s") {
			t.Errorf("the second failure: %s", text)
		}
		now = now.Add(4 * time.Second)
		if text := printed(member.Notice{Kind: member.HeartbeatRecovered}); !strings.Contains(text, "after=7s") {
			t.Errorf("after the outage: %s", text)
		}
		now = now.Add(time.Hour)
	}
}
