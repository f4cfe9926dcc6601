package main

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wants "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/twmb/franz-go/pkg/kfake"
)

func startKafka() (brokers []string, stop func(), err error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(3, topic), kfake.GroupMinSessionTimeout(time.Second))
	if err != nil {
		return nil, nil, err
	}
	return cluster.ListenAddrs(), cluster.Close, nil
}

func publisherKafka(brokers []string) (message.Publisher, error) {
	return kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers, Marshaler: kafka.DefaultMarshaler{}}, watermill.NopLogger{})
}

// subscribeKafka is a member of a consumer group, which reads from the beginning where it has no
// offset.
func subscribeKafka(brokers []string, group string) (message.Subscriber, error) {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = -2 // the oldest
	config.Consumer.Group.Session.Timeout = 2 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	return kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: brokers, ConsumerGroup: group, Unmarshaler: kafka.DefaultMarshaler{}, OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
}

func startNATS(folder string) (url string, stop func(), err error) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, JetStream: true, StoreDir: folder})
	if err != nil {
		return "", nil, err
	}
	s.Start()
	stop = func() { s.Shutdown(); s.WaitForShutdown() }
	if !s.ReadyForConnections(20 * time.Second) {
		stop()
		return "", nil, errors.New("the NATS server does not start")
	}
	return s.ClientURL(), stop, nil
}

// publisherNATS makes the stream of the topic.
func publisherNATS(url string) (message.Publisher, error) {
	return wants.NewPublisher(wants.PublisherConfig{URL: url, JetStream: wants.JetStreamConfig{AutoProvision: true}}, watermill.NopLogger{})
}

// subscribeNATS is a member of a durable consumer, which begins with the first message of the
// stream.
func subscribeNATS(url, group string) (message.Subscriber, error) {
	return wants.NewSubscriber(wants.SubscriberConfig{
		URL: url, QueueGroupPrefix: group, AckWaitTimeout: 2 * time.Second,
		// Without ManualAck the client acknowledges even what the subscriber gave up.
		JetStream: wants.JetStreamConfig{
			DurablePrefix:    group,
			SubscribeOptions: []nats.SubOpt{nats.ManualAck(), nats.DeliverAll(), nats.AckExplicit(), nats.AckWait(2 * time.Second)},
		},
	}, watermill.NopLogger{})
}
