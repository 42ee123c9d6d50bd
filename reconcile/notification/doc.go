// Package notification decides which changes of state are sent to the server of settings.notify, by which node, and in which form.
//
//	each observation (a status document):
//	    on       := the conditions that hold in the cluster, as this node sees it   (Observe)
//	    episodes := begin, continue and end with the conditions                    (Tracker.Update)
//	    due      := what this node has to send now                                 (Tracker.Due)
//
// # Promises
//
//  1. Conditions are derived from what every node knows: the configuration, its own disks, and what the other nodes publish. So
//     all nodes have the same episodes, some seconds apart.
//  2. A condition that holds for less than Hold is not sent. An episode is over when its condition has not held for Hold.
//     What is unknown, because a node does not respond, neither begins nor ends an episode.
//  3. For each condition, the nodes that respond have ranks (Rank). The first one sends at once. The second one sends the same
//     once a delay has passed, whatever the first one claims, so that a node that only pretends to send silences nothing for longer.
//     All others are silent. Alertmanager combines the two messages by their labels, and receivers of CloudEvents by the id.
//  4. Episodes survive a restart in a record on the disks of the node (Tracker.Record), and so does what was sent.
//  5. The number of episodes is bounded by the configuration: it is a small number for each declared image. Texts are clipped, and
//     printable.
//
// The package does no I/O, and reads no clock. Package reconcile sends, and keeps the record.
//
// # Reading order
//
// condition.go, tracker.go, rank.go, message.go.
package notification
