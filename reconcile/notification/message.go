package notification

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/text"
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

// message is the body of one request, with the events in it.
type message struct {
	contentType string
	body        []byte
	events      []event
}

// summary returns one line about an event.
func (e event) summary() string {
	text := kinds[e.Kind].summary
	if e.over() {
		text = kinds[e.Kind].over
	}
	switch {
	case e.Image == "":
		return text
	case e.Node != "":
		return "image " + e.Image + " on node " + e.Node + ": " + text
	}
	return "image " + e.Image + ": " + text
}

// text returns what was observed. At the end of an episode, that is what held before.
func (e event) text() string {
	if e.over() {
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

// alertContext is what the alerts of one moment have in common.
type alertContext struct {
	cluster string    // see schema.Notify
	now     time.Time // by the wall clock
	address string    // of this node; "": none is declared
}

// alerts returns the bodies of requests POST /api/v2/alerts. The labels identify an alert. They are the same from all nodes that send
// the alert, and do not change during an episode.
func alerts(events []event, x alertContext) []message {
	var messages []message
	for part := range slices.Chunk(events, maxAlerts) {
		list := make([]alert, len(part))
		for i, e := range part {
			list[i] = x.alert(e)
		}
		messages = append(messages, message{"application/json", encode(list), part})
	}
	return messages
}

func (x alertContext) alert(e event) alert {
	labels := map[string]string{"alertname": kinds[e.Kind].alert, "severity": kinds[e.Kind].severity, "job": "backing-image-manager"}
	for name, value := range map[string]string{"image": e.Image, "node": e.Node, "cluster": x.cluster} {
		if value != "" {
			labels[name] = value
		}
	}
	a := alert{
		Labels: labels, Annotations: map[string]string{"summary": e.summary(), "description": e.text()},
		StartsAt: e.Since, EndsAt: x.now.Add(alertExpires), GeneratorURL: x.address,
	}
	if e.over() {
		a.EndsAt = x.now
	}
	if a.EndsAt.Before(a.StartsAt) { // the clock was set back
		a.StartsAt = a.EndsAt
	}
	return a
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
	Node     string    `json:"node,omitempty"`
	Cluster  string    `json:"cluster,omitempty"`
	Resolved bool      `json:"resolved"`
	Since    time.Time `json:"since"`
	Summary  string    `json:"summary"`
	Text     string    `json:"text"`
}

// cloudEvents returns the bodies of requests in structured mode, one for each event.
func cloudEvents(events []event, cluster string) []message {
	var messages []message
	for _, e := range events {
		c := cloudEvent{
			SpecVersion: "1.0", ID: e.id(cluster), Source: "/backing-image-manager/" + url.PathEscape(cluster), Subject: e.Image, DataType: "application/json",
			Type: "backing-image-manager." + string(e.Kind), Time: e.Since,
			Data: cloudEventData{e.Kind, e.Image, e.Node, cluster, e.over(), e.Since, e.summary(), e.text()},
		}
		if e.Node != "" {
			c.Subject += "/" + e.Node
		}
		if e.over() {
			c.Type, c.Time = c.Type+".resolved", e.Ended.UTC().Truncate(time.Second)
		}
		messages = append(messages, message{"application/cloudevents+json", encode(c), []event{e}})
	}
	return messages
}

// id identifies an event: receivers drop what they have.
func (e event) id(cluster string) string {
	h := sha256.New()
	for _, part := range []string{cluster, string(e.Kind), e.Image, e.Node, strconv.FormatInt(e.Since.Unix(), 10), strconv.FormatBool(e.over())} {
		h.Write([]byte(strconv.Quote(part)))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("notification: encode a message: " + err.Error()) // its types have no values that JSON lacks
	}
	return text.PrintableJSON(b)
}
