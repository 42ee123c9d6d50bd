package notification

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/freeport"
)

var alertmanager = flag.String("alertmanager", "", "`path` of an Alertmanager, which TestAlertmanager runs")

// TestAlertmanager sends the messages of two nodes to a real Alertmanager. Its receiver gets each change once.
func TestAlertmanager(t *testing.T) {
	if *alertmanager == "" {
		t.Skip("needs -alertmanager PATH, such as that of Debian's package prometheus-alertmanager, which starts a service when it is installed")
	}
	notified := make(chan string, 100) // STATUS ALERTNAME IMAGE
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var group struct {
			Alerts []struct {
				Status string
				Labels map[string]string
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&group); err != nil {
			t.Error(err)
		}
		for _, a := range group.Alerts {
			notified <- a.Status + " " + a.Labels["alertname"] + " " + a.Labels["image"]
		}
	}))
	defer receiver.Close()
	url := startAlertmanager(t, receiver.URL)
	post := func(events []event, now time.Time, address string) {
		t.Helper()
		for _, m := range alerts(events, alertContext{cluster: "edge-7", now: now, address: address}) {
			r, err := http.Post(url+"/api/v2/alerts", m.contentType, bytes.NewReader(m.body))
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(r.Body)
			r.Body.Close()
			if r.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s\n%s", r.Status, body, m.body)
			}
		}
	}
	want := func(want string) {
		t.Helper()
		select {
		case got := <-notified:
			if got != want {
				t.Errorf("the receiver got %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the receiver does not get %q", want)
		}
	}
	now := time.Now()
	notReady := []event{{Condition{NotReady, "parrot", ""}, now.Add(-10 * time.Minute), time.Time{}, hostile}}
	post(notReady, now, "http://10.0.0.1:8000")
	want("firing BackingImageNotReady parrot")
	// The same alert from the second node, whose observation began later, and once more from the first one after a restart.
	notReady[0].Since = notReady[0].Since.Add(20 * time.Second)
	post(notReady, now, "http://10.0.0.2:8000")
	post(notReady, now, "http://10.0.0.1:8000")
	post([]event{{Condition{Kind: PruneLimit}, now.Add(-10 * time.Minute), time.Time{}, "x"}}, now, "")
	want("firing BackingImagePruneLimit ") // nothing about parrot came before it
	notReady[0].Ended = time.Now()
	post(notReady, time.Now(), "http://10.0.0.1:8000")
	want("resolved BackingImageNotReady parrot")
	post(notReady, time.Now(), "http://10.0.0.2:8000")
	post([]event{{Condition{Kind: PruneLimit}, now.Add(-10 * time.Minute), time.Now(), "x"}}, time.Now(), "")
	want("resolved BackingImagePruneLimit ")
}

// startAlertmanager returns the address of an Alertmanager that sends its notifications to receiver at once.
func startAlertmanager(t *testing.T, receiver string) string {
	dir := t.TempDir()
	file := filepath.Join(dir, "alertmanager.yml")
	config := fmt.Sprintf("route: {receiver: r, group_by: ['...'], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}\nreceivers: [{name: r, webhook_configs: [{url: %q}]}]\n", receiver)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	address, err := freeport.Address("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(*alertmanager, "--config.file="+file, "--storage.path="+dir, "--web.listen-address="+address, "--cluster.listen-address=", "--log.level=warn")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("output of alertmanager:\n%s", output.Bytes())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		r, err := http.DefaultClient.Do(must(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/-/ready", nil)))
		if err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return "http://" + address
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("alertmanager does not start: %v", err)
		}
	}
}

func must(r *http.Request, err error) *http.Request {
	if err != nil {
		panic(err)
	}
	return r
}
