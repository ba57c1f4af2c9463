package hosts

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/internal/testproc"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/sqlite"
)

func TestMain(m *testing.M) {
	code := m.Run()
	drill.Cleanup()
	os.Exit(code)
}

// machine is a network namespace with a node in it.
type machine struct {
	name, space, ip string
	proc            *testproc.Process
	log             string
}

// site is two machines that share only a directory and the cable between them.
type site struct {
	t        *testing.T
	dir      string
	binary   string
	machines []*machine
}

// build makes the namespaces and the cable.
func build(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), binary: drill.Binary(t)}
	for i, space := range spaces(t, "a", "b") {
		s.machines = append(s.machines, &machine{name: string(rune('a' + i)), space: space, ip: fmt.Sprintf("10.77.0.%d", i+1)})
	}
	a, b := s.machines[0], s.machines[1]
	run(t, "ip", "link", "add", a.space, "netns", a.space, "type", "veth", "peer", "name", b.space, "netns", b.space)
	for _, m := range s.machines {
		run(t, "ip", "-n", m.space, "addr", "add", m.ip+"/24", "dev", m.space)
		run(t, "ip", "-n", m.space, "link", "set", "lo", "up")
		run(t, "ip", "-n", m.space, "link", "set", m.space, "up")
	}
	s.certificates()
	s.write("tokens", "a-token-that-all-machines-know\n")
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// certificates makes a private authority, and a certificate from it for each machine and for a client.
func (s *site) certificates() {
	s.t.Helper()
	var authority *x509.Certificate
	var signer *ecdsa.PrivateKey
	issue := func(name string, number int64, change func(c *x509.Certificate)) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			s.t.Fatal(err)
		}
		c := &x509.Certificate{
			SerialNumber: big.NewInt(number), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}
		change(c)
		if authority == nil {
			authority, signer = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, authority, key.Public(), signer)
		if err != nil {
			s.t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			s.t.Fatal(err)
		}
		s.write(name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
		s.write(name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	}
	issue("authority", 1, func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	})
	for i, m := range s.machines {
		issue(m.name, int64(i+2), func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.ParseIP(m.ip)} })
	}
	issue("client", 9, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
}

// command runs emitd on a machine.
func (s *site) command(m *machine, args ...string) *exec.Cmd {
	cmd := exec.Command("ip", append([]string{"netns", "exec", m.space, s.binary}, args...)...)
	cmd.Dir = s.dir
	return cmd
}

func (s *site) store() string { return "sqlite://" + s.path("emitd.db") }

// start starts the node of a machine. It listens on all addresses, as in a pod, and its address is not
// configured.
func (s *site) start(m *machine) {
	s.t.Helper()
	out, err := os.Create(s.path(m.name + ".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := s.command(m, "serve", "--store", s.store(), "--objects", "file://"+s.path("objects"), "--profile", "fast", "--node-name", m.name,
		"--listen", "0.0.0.0:7070", "--api.tokens-file", s.path("tokens"), "--api.tls.cert", s.path(m.name+".pem"), "--api.tls.key", s.path(m.name+".key"),
		"--api.tls.ca", s.path("authority.pem"), "--api.tls.client-ca", s.path("authority.pem"))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if m.proc, err = testproc.Start(cmd); err != nil {
		s.t.Fatal(err)
	}
	m.log = out.Name()
	s.t.Cleanup(func() {
		_ = m.proc.Cmd.Process.Kill()
		<-m.proc.Done
		out.Close()
		if s.t.Failed() {
			text, _ := os.ReadFile(m.log)
			s.t.Logf("log of %s:\n%s", m.name, text)
		}
	})
}

// client runs a client command on a machine, with the authority, a certificate and the token.
func (s *site) client(m *machine, args ...string) (string, error) {
	cmd := s.command(m, append(args, "--api.tls.ca", s.path("authority.pem"), "--api.tls.client-cert", s.path("client.pem"), "--api.tls.client-key", s.path("client.key"), "--timeout", "30s")...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("emitd %s: %w: %s", strings.Join(args, " "), err, complaint.String())
	}
	return out.String(), nil
}

func (s *site) must(m *machine, args ...string) string {
	s.t.Helper()
	out, err := s.client(m, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// joined waits until the nodes know each other's addresses, and a broker serves the queue.
func (s *site) joined() {
	s.t.Helper()
	store, err := sqlite.Open(context.Background(), s.path("emitd.db"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer store.Close()
	deadline := time.Now().Add(2 * time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		<-tick.C
		if time.Now().After(deadline) {
			s.t.Fatal("the nodes did not join within two minutes")
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		snap, err := store.Snapshot(ctx)
		cancel()
		if err != nil || len(snap.Nodes) < 2 {
			continue
		}
		for _, m := range s.machines {
			i := slices.IndexFunc(snap.Nodes, func(n node.Member) bool { return n.Name == m.name })
			if i >= 0 && snap.Nodes[i].Address != m.ip+":7070" {
				s.t.Fatalf("%s advertises %s", m.name, snap.Nodes[i].Address)
			}
		}
		for _, u := range snap.Units {
			if u.Unit.Daemon == "emit:queue/default" && u.State == daemon.Active {
				return
			}
		}
	}
}

// TestTwoHosts checks that nodes on two hosts that listen on all addresses find each other. A job is
// submitted, claimed and completed through either node, whichever serves the queue, with a private
// authority and client certificates on all sides.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	s := build(t)
	for _, m := range s.machines {
		s.start(m)
	}
	s.joined()
	a := s.machines[0]
	for _, through := range s.machines {
		at := []string{"--addr", through.ip + ":7070", "--token-file", s.path("tokens")}
		id := "job-through-" + through.name
		s.must(a, slices.Concat([]string{"queue", "enqueue", "default", `{"n":1}`, "--id", id}, at)...)
		var claimed []struct {
			ID, Token string
		}
		out := s.must(a, slices.Concat([]string{"queue", "claim", "default", "-o", "json"}, at)...)
		if err := json.Unmarshal([]byte(out), &claimed); err != nil || len(claimed) != 1 || claimed[0].ID != id {
			t.Fatalf("claimed through %s: %s, %v", through.name, out, err)
		}
		s.must(a, slices.Concat([]string{"queue", "complete", "default", id, "--token", claimed[0].Token}, at)...)
	}
	// The client also finds the nodes through the store, by their advertised addresses.
	if out := s.must(a, "queue", "stats", "default", "-o", "json", "--store", s.store(), "--token-file", s.path("tokens")); !strings.Contains(out, `"completed": 2`) {
		t.Errorf("statistics: %s", out)
	}
	// A client without a certificate is refused, and so is one that trusts only the system's authorities.
	plain := s.command(a, "queue", "ls", "--addr", a.ip+":7070", "--token-file", s.path("tokens"), "--timeout", "10s", "--api.tls.ca", s.path("authority.pem"))
	if out, err := plain.CombinedOutput(); err == nil || !strings.Contains(string(out), "client certificate") {
		t.Errorf("without a certificate: %s, %v", out, err)
	}
	if out, err := s.command(a, "queue", "ls", "--addr", a.ip+":7070", "--tls", "--timeout", "2s").CombinedOutput(); err == nil {
		t.Errorf("of the system's authorities: %s", out)
	}
	// doctor calls the nodes from the machine on which it runs.
	out, err := s.client(a, "doctor", "--store", s.store(), "-o", "json")
	if !strings.Contains(out, "2 of 2 nodes answer") {
		t.Errorf("doctor: %s, %v", out, err)
	}
	run(t, "ip", "-n", s.machines[1].space, "link", "set", s.machines[1].space, "down")
	out, err = s.client(a, "doctor", "--store", s.store(), "-o", "json")
	if err == nil || !strings.Contains(out, "node b cannot be reached from this host at 10.77.0.2:7070") {
		t.Errorf("doctor without the cable: %s, %v", out, err)
	}
}
