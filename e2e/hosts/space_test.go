package hosts

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/testproc"
)

const howTo = `this test makes network namespaces: run it as root on Linux with iproute2 (Debian: iproute2). In a container that
needs CAP_SYS_ADMIN and CAP_NET_ADMIN: docker run --privileged`

// run runs a command that needs the rights of root.
func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s\n\n%s", name, strings.Join(args, " "), err, out, howTo)
	}
}

// spacesMade counts the groups of namespaces of this process, so that their names differ.
var spacesMade int

// spaces makes network namespaces, and returns their names. They are removed when the test ends. A process of its own
// does that once nobody has the other end of its standard input, so they are also removed if this process is killed.
func spaces(t testing.TB, names ...string) (all []string) {
	t.Helper()
	spacesMade++
	for _, name := range names { // names of links must be short
		all = append(all, fmt.Sprintf("e%d%c%s", os.Getpid()%100_000, 'a'+spacesMade%26, name))
	}
	remove := exec.Command("sh", append([]string{"-c", `read end; for space; do ip netns del "$space"; done`, "sh"}, all...)...)
	remove.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // an interrupt at the terminal does not reach it
	end, err := remove.StdinPipe()
	if err == nil {
		err = remove.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		end.Close()
		_ = remove.Wait() // fails if not all were made
	})
	for _, space := range all {
		run(t, "ip", "netns", "add", space)
		run(t, "ip", "-n", space, "link", "set", "lo", "up")
	}
	return all
}

// listen listens in a network namespace.
func listen(t testing.TB, space, address string) net.Listener {
	t.Helper()
	var l net.Listener
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is in the other namespace, and ends with the goroutine
		f, err := os.Open("/run/netns/" + space)
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			f.Close()
		}
		if err == nil {
			l, err = net.Listen("tcp", address)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("listen in the network namespace %s: %v\n\n%s", space, err, howTo)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// killedVariable makes TestSpacesOfAKilledProcess the process that is killed.
const killedVariable = "EMITD_TEST_HOSTS_KILLED"

// TestSpacesOfAKilledProcess checks that namespaces are removed when the process that made them is killed.
func TestSpacesOfAKilledProcess(t *testing.T) {
	if os.Getenv(killedVariable) != "" {
		fmt.Println(spaces(t, "x")[0])
		select {}
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestSpacesOfAKilledProcess$")
	cmd.Env = append(os.Environ(), killedVariable+"=1")
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := testproc.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	name, _ := bufio.NewReader(out).ReadString('\n')
	path := "/run/netns/" + strings.TrimSpace(name)
	_, made := os.Stat(path)
	_ = p.Cmd.Process.Kill()
	<-p.Done
	if made != nil || name == "" {
		t.Fatalf("%q is no network namespace: %v\n\n%s", name, made, howTo)
	}
	for until := time.Now().Add(time.Minute); ; {
		if _, err := os.Stat(path); os.IsNotExist(err) {
			return
		}
		if time.Now().After(until) || backoff.Sleep(t.Context(), 10*time.Millisecond) != nil {
			t.Fatalf("%s is still there", path)
		}
	}
}
