// Package notification decides which changes of state are sent to the server of settings.notify, by which node, and in which form.
//
//	each observation (a status document):
//	    on       := the conditions that hold in the cluster, as this node sees it   (Observe)
//	    episodes := begin, continue and end with the conditions                    (Tracker.Update)
//	    learn what the other node of the first two has sent (CloudEvents only)     (Tracker.Told, Tracker.Learn)
//	    due      := what this node has to send now                                 (Tracker.Due)
//
// # Promises
//
//  1. Conditions are derived from what every node knows: the configuration, its own disks, and what the other nodes publish. So
//     all nodes have the same episodes, some seconds apart.
//  2. A condition that holds for less than Hold is not sent. An episode is over when its condition has not held for Hold.
//     What is unknown, because a node does not respond, neither begins nor ends an episode.
//  3. For each condition, the nodes that respond have ranks (Rank). The first one sends at once, the second one once a delay has
//     passed, and all others are silent. Alertmanager combines the messages of the two by their labels, and a node that only pretends
//     to send silences nothing for longer. Receivers of CloudEvents need not combine anything: there, the two nodes ask each other, and
//     believe, which events were sent. An event comes twice only if the node that sent it cannot be asked after that.
//  4. Episodes survive a restart in a record on the disks of the node (Tracker.Record), and so does what was sent. A node that has
//     lost it learns it from the other one.
//  5. The number of episodes is bounded by the configuration: it is a small number for each declared image. Texts are clipped, and
//     printable.
//
// The package does no I/O, and reads no clock. Package reconcile sends, and keeps the record.
//
// # Reading order
//
// condition.go, tracker.go, rank.go, message.go.
package notification
