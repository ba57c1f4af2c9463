package sqlite

import (
	"os"
	"testing"
	"time"
)

func TestThisHost(t *testing.T) {
	t.Parallel()
	a, err := thisHost()
	ok(t, err)
	b, err := thisHost()
	ok(t, err)
	if a.bootID == "" || a.bootID != b.bootID {
		t.Errorf("boot ids %q and %q", a.bootID, b.bootID)
	}
	first, second := a.sinceBoot(), b.sinceBoot()
	if second < first || second-first > time.Minute {
		t.Errorf("clock went from %v to %v", first, second)
	}
}

func TestBootShift(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0,
		"monotonic           0         0\nboottime            0         0\n": 0,
		"monotonic          10         0\nboottime           -3 500000000\n": -2500 * time.Millisecond,
		"boottime 7 1": 7*time.Second + 1,
	} {
		if got, err := bootShift(text); got != want || err != nil {
			t.Errorf("%q is %v (%v), want %v", text, got, err, want)
		}
	}
	if _, err := bootShift("boottime soon"); err == nil {
		t.Error("nonsense has no error")
	}
}

func TestLockOwner(t *testing.T) {
	t.Parallel()
	const locks = `1: POSIX  ADVISORY  WRITE 11 fe:00:99 120 120
2: POSIX  ADVISORY  READ  12 fe:00:42 120 120
3: POSIX  ADVISORY  WRITE 13 fe:00:42 128 128
3: -> POSIX  ADVISORY  WRITE 14 fe:00:42 120 120
4: FLOCK  ADVISORY  WRITE 15 fe:00:41 0 EOF
5: POSIX  ADVISORY  WRITE 16 fe:00:42 120 127
6: POSIX  ADVISORY  WRITE -1 fe:00:43 120 120
`
	for file, want := range map[string]int{"fe:00:42": 16, "fe:00:99": 11, "fe:00:41": 0, "fe:00:43": 0, "fe:00:4": 0} {
		if got := lockOwner(locks, file); got != want {
			t.Errorf("%s is locked by %d, want %d", file, got, want)
		}
	}
	if isStopped(os.Getpid()) || isStopped(-1) {
		t.Error("a running process, or none, is stopped")
	}
}

func TestNetworkFileSystems(t *testing.T) {
	t.Parallel()
	for magic, want := range map[int64]string{0x6969: "NFS", 0xff534d42: "SMB", -11317950: "SMB", 0xef53: "", 0x01021994: "", 0x9123683e: ""} {
		if got := networkMagic(magic); got != want {
			t.Errorf("%x is %q, want %q", magic, got, want)
		}
	}
}
