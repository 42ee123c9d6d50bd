package notification

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/printable"
)

// kindText is how a Kind is shown to people and to Alertmanager.
type kindText struct{ alert, severity, summary, over string }

var kinds = map[Kind]kindText{
	NotReady:       {"BackingImageNotReady", "warning", "not ready", "ready"},
	Failed:         {"BackingImageFailed", "warning", "a copy fails", "no copy fails any more"},
	Blocked:        {"BackingImageBlocked", "warning", "blocked until a person changes something", "not blocked any more"},
	Damaged:        {"BackingImageDamaged", "warning", "a copy was damaged", "no copy is damaged"},
	PruneLimit:     {"BackingImagePruneLimit", "warning", "the prune limit is reached", "the prune limit is not reached any more"},
	SuspensionOver: {"BackingImageSuspensionOver", "info", "a suspension has ended, and is still declared", "no ended suspension is declared"},
}

// Context is what the messages of one moment have in common.
type Context struct {
	Cluster string    // see schema.Notify
	Now     time.Time // by the wall clock
	// Expires is after what time Alertmanager resolves an alert that no node sends again.
	Expires time.Duration
	Address string // of this node; "": none is declared
}

// Message is the body of one request, with the events in it.
type Message struct {
	ContentType string
	Body        []byte
	Events      []Event
}

// summary returns one line about an event.
func (e Event) summary() string {
	text := kinds[e.Kind].summary
	if e.Over {
		text = kinds[e.Kind].over
	}
	if e.Image == "" {
		return text
	}
	return "image " + e.Image + ": " + text
}

// text returns what was observed. At the end of an episode, that is what held before.
func (e Event) text() string {
	if e.Over {
		return "before: " + e.Text
	}
	return e.Text
}

// alert is one alert of the Alertmanager API v2 (postableAlert in its OpenAPI document).
type alert struct {
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       time.Time         `json:"endsAt"`
	GeneratorURL string            `json:"generatorURL,omitempty"`
}

// maxAlerts is how many alerts one request has at most: about 200 KiB.
const maxAlerts = 100

// Alerts returns the bodies of requests POST /api/v2/alerts. The labels identify an alert. They are the same on all nodes, and while
// an episode goes on.
func (x Context) Alerts(events []Event) []Message {
	var messages []Message
	for part := range slices.Chunk(events, maxAlerts) {
		alerts := make([]alert, len(part))
		for i, e := range part {
			labels := map[string]string{"alertname": kinds[e.Kind].alert, "severity": kinds[e.Kind].severity, "job": "backing-image-manager"}
			if e.Image != "" {
				labels["image"] = e.Image
			}
			if x.Cluster != "" {
				labels["cluster"] = x.Cluster
			}
			alerts[i] = alert{
				Labels: labels, Annotations: map[string]string{"summary": e.summary(), "description": e.text()},
				StartsAt: e.Since, EndsAt: x.Now.Add(x.Expires), GeneratorURL: x.Address,
			}
			if e.Over {
				alerts[i].EndsAt = x.Now
			}
			if a := &alerts[i]; a.EndsAt.Before(a.StartsAt) { // the clock was set back
				a.StartsAt = a.EndsAt
			}
		}
		messages = append(messages, Message{"application/json", encode(alerts), part})
	}
	return messages
}

// cloudEvent is an event in the JSON format of CloudEvents 1.0.
type cloudEvent struct {
	SpecVersion string         `json:"specversion"`
	ID          string         `json:"id"`
	Source      string         `json:"source"`
	Type        string         `json:"type"`
	Subject     string         `json:"subject,omitempty"`
	Time        time.Time      `json:"time,omitzero"`
	DataType    string         `json:"datacontenttype"`
	Data        cloudEventData `json:"data"`
}

type cloudEventData struct {
	Kind     Kind      `json:"kind"`
	Image    string    `json:"image,omitempty"`
	Cluster  string    `json:"cluster,omitempty"`
	Resolved bool      `json:"resolved"`
	Since    time.Time `json:"since"`
	Summary  string    `json:"summary"`
	Text     string    `json:"text"`
}

// CloudEvents returns the bodies of requests in structured mode, one for each event.
func (x Context) CloudEvents(events []Event) []Message {
	var messages []Message
	for _, e := range events {
		c := cloudEvent{
			SpecVersion: "1.0", ID: x.id(e), Source: "/backing-image-manager/" + url.PathEscape(x.Cluster), Subject: e.Image, DataType: "application/json",
			Type: "backing-image-manager." + string(e.Kind), Time: e.Since,
			Data: cloudEventData{e.Kind, e.Image, x.Cluster, e.Over, e.Since, e.summary(), e.text()},
		}
		if e.Over {
			c.Type, c.Time = c.Type+".resolved", x.Now.UTC().Truncate(time.Second)
		}
		messages = append(messages, Message{"application/cloudevents+json", encode(c), []Event{e}})
	}
	return messages
}

// id identifies an event. Nodes observe the beginning of an episode at slightly different times, so that the id has only the
// period of Hold in which it began. Two episodes of one condition are further apart.
func (x Context) id(e Event) string {
	h := sha256.New()
	for _, part := range []string{x.Cluster, string(e.Kind), e.Image, strconv.FormatInt(e.Since.Unix()/int64(Hold/time.Second), 10), strconv.FormatBool(e.Over)} {
		h.Write([]byte(strconv.Quote(part)))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("notification: encode a message: " + err.Error()) // its types have no values that JSON lacks
	}
	return printable.JSON(b)
}
