package reconcile

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/clusterview"
	"github.com/seed-26586806/backing-image-manager/reconcile/delivery"
	"github.com/seed-26586806/backing-image-manager/reconcile/notification"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestNotificationIsRefused: a server that refuses a notification holds up nothing, and the status, the counts and the log say so, without
// secrets.
func TestNotificationIsRefused(t *testing.T) {
	var requests atomic.Pointer[string]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		line := r.Method + " " + r.URL.String() + " " + r.Header.Get("Content-Type")
		requests.Store(&line)
		w.WriteHeader(http.StatusMethodNotAllowed)
	}))
	defer server.Close()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var output bytes.Buffer
		log := slog.New(slog.NewTextHandler(&output, nil))
		l, v := NewLoop(New(fetch.Client{}, nil, log, true), LoopOptions{Node: "node01", Log: log}), clusterview.ThreeNodes()
		v.Loaded, v.Desired.Config.Settings.AllowLoopbackSources = true, true
		v.Desired.Config.Settings.Notify = &schema.Notify{URL: server.URL + "/x?key=s3cr3t", Format: schema.NotifyCloudEvents}
		ref := ident.DiskRef{Node: "node01", Disk: "disk1"}
		for id := range v.Observed.Disks[ref].Copies {
			v.Observed.Failures = map[ident.CopyRef]model.Failure{{Disk: ref, ID: id}: {Attempts: 1, Message: "broken"}}
		}
		l.publish(&v)
		go l.notifier.Run(ctx)
		time.Sleep(notification.Hold + 30*time.Second)
		synctest.Wait()
		stop()
		synctest.Wait()
		if got := requests.Load(); got == nil || *got != "POST /x?key=s3cr3t application/cloudevents+json" {
			t.Fatalf("the server got %v", got)
		}
		_, s := l.Status()
		if s.Notify == nil || s.Notify.Server != server.URL || s.Notify.Problem != "the server responds with 405 Method Not Allowed" {
			t.Errorf("the status is %+v", s.Notify)
		}
		if got := l.Counts().Notifications; got != (delivery.Counts{Failed: 1}) {
			t.Errorf("the counts are %+v", got)
		}
		if strings.Count(output.String(), "notification not accepted") != 1 || strings.Contains(output.String(), "s3cr3t") {
			t.Errorf("the log is\n%s", output.String())
		}
	})
}
